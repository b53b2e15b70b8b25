"""Gate for sequences where several steps are in flight: none waits for what another one computes.

A step takes sequences whose tokens are all known: not those for which a step in flight chooses a
token. The chunks of a prompt may follow each other in flight. So that no stage is idle, a step
takes only its share of the sequences that decode; the others are those of the other steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.engine.sequence.sequence import Sequence


class FlightGate:
    """Used once per step: `open`, then `lets` for each sequence."""

    def __init__(self, num_stages: int) -> None:
        """`num_stages`: the steps that may be in flight; with one, the gate is always open."""
        self._num_stages = num_stages
        #: Of sequences that decode, how many more this step takes.
        self._room = 0

    def open(self, running: Collection[Sequence]) -> list[Sequence]:
        """Begin a step; return the sequences whose tokens are known, as far as that matters."""
        if self._num_stages == 1:
            return list(running)
        num_decoding = sum(seq.num_pending_tokens == 1 for seq in running)
        self._room = -(-num_decoding // self._num_stages)
        return [seq for seq in running if not seq.num_unknown_tokens]

    def lets(self, seq: Sequence) -> bool:
        """Return whether the step has room for one of these sequences. Counts it if it decodes."""
        if self._num_stages == 1 or seq.num_pending_tokens != 1:
            return True
        self._room -= 1
        return self._room >= 0
