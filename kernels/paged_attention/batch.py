"""The description of a batch's sequences that paged attention takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class RaggedBatch(Protocol):
    """Sequences of different lengths; their new tokens lie behind each other."""

    @property
    def query_start_loc(self) -> Tensor:
        """int32 [num_seqs + 1]: where each sequence's new tokens start, and the last ones end."""
        ...

    @property
    def seq_lens(self) -> Tensor:
        """int32 [num_seqs]: context length, new tokens included."""
        ...

    @property
    def block_tables(self) -> Tensor:
        """int32 [num_seqs, max_blocks]."""
        ...

    @property
    def query_lens_list(self) -> Sequence[int]:
        """Numbers of new tokens, on the host."""
        ...

    @property
    def seq_lens_list(self) -> Sequence[int]:
        """`seq_lens`, on the host."""
        ...
