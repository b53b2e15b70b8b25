"""Waiting for blocks or masks, for a caller with nothing else to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.offload.cached_blocks import CachedBlocks
    from shared.engine.sequence.sequence import Sequence

#: Time to wait for a mask before the other sequences are checked again.
_MASK_S = 1.0


def wait_for_news(cached: CachedBlocks, running: Iterable[Sequence]) -> bool:
    """Wait until blocks or a mask may have arrived; return False if nothing is awaited."""
    if cached.offload is not None and cached.is_loading:
        cached.offload.wait()
        return True
    grammar = next((seq.grammar for seq in running if seq.grammar is not None), None)
    if grammar is not None:
        grammar.wait_mask(_MASK_S, patiently=True)
    return grammar is not None
