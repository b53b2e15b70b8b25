"""What sequences wait for outside of the engine, for a caller with nothing else to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.offload.cached_blocks import CachedBlocks
    from shared.engine.sequence.sequence import Sequence

#: A mask is waited for so long before the other sequences are looked at again.
_MASK_S = 1.0


def wait_for_news(cached: CachedBlocks, running: Iterable[Sequence]) -> bool:
    """Sleep until blocks or a grammar's mask may have come. False: nothing is awaited."""
    if cached.offload is not None and cached.is_loading:
        cached.offload.wait()
        return True
    grammar = next((seq.grammar for seq in running if seq.grammar is not None), None)
    if grammar is not None:
        grammar.wait_mask(_MASK_S, patiently=True)
    return grammar is not None
