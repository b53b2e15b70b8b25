"""The states of a batch's sequences, in blocks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

#: Most new tokens of a sequence that a kernel with chunks leaves to the one without.
MOST_SINGLE = 8


class StateBatch(NamedTuple):
    """Sequences whose new tokens lie behind each other, and one layer's states."""

    #: float32 [num_blocks, state_size]; numbers of a block lie side by side.
    states: Tensor
    #: int32 [num_seqs, 2]: the block of the state before the new tokens, -1 if none are before
    #: them, and the block for the state after them. No sequence reads what another one writes.
    blocks: Tensor
    #: int32 [num_seqs + 1]: where each sequence's new tokens start, and the last ones end.
    query_start_loc: Tensor
    #: Numbers of new tokens, on the host.
    query_lens_list: Sequence[int]

    @property
    def has_long(self) -> bool:
        """Whether a sequence has more than `MOST_SINGLE` new tokens."""
        return max(self.query_lens_list) > MOST_SINGLE

    def read(self, numbers: slice) -> Tensor:
        """Return these numbers of each sequence's state before its tokens, copied; zeros if there
        is none: [num_seqs, ...].
        """
        before = self.blocks[:, 0].long()
        held = self.states[:, numbers][before.clamp(min=0)]
        held[before < 0] = 0.0
        return held

    def write(self, numbers: slice, held: Tensor) -> None:
        """Set these numbers of each sequence's state after its tokens."""
        self.states[:, numbers][self.blocks[:, 1].long()] = held

    def runs(self) -> Iterator[tuple[slice, slice]]:
        """Yield runs of sequences with equal numbers of tokens: their tokens, and themselves."""
        first_token = first_seq = 0
        for num, run in groupby(self.query_lens_list):
            num_seqs = sum(1 for _ in run)
            end = first_token + num * num_seqs
            if num:
                yield slice(first_token, end), slice(first_seq, first_seq + num_seqs)
            first_token, first_seq = end, first_seq + num_seqs
