"""Gate for sequences with a grammar: a step takes those whose mask is ready in time.

Masks are computed elsewhere while the engine continues. A late mask delays only its own sequence,
which a later step takes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.sequence.sequence import Sequence

#: Time that a step waits for the masks of all its sequences in total, and a little for each.
MAX_WAIT_S = 0.001
_WAIT_EACH_S = 0.00005


class MaskGate:
    """Used once per step: `open`, then `lets` for each sequence."""

    def __init__(self) -> None:
        self._left_s = 0.0

    def open(self, running: Iterable[Sequence]) -> None:
        """Request all masks, so that they are computed in parallel."""
        self._left_s = MAX_WAIT_S
        for seq in running:
            if seq.grammar is not None:
                seq.grammar.ask_mask()
                self._left_s += _WAIT_EACH_S

    def lets(self, seq: Sequence) -> bool:
        """Return whether the sequence's next token can be sampled."""
        if seq.grammar is None:
            return True
        began_s = time.monotonic()
        is_there = seq.grammar.wait_mask(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))
        return is_there
