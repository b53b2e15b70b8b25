"""Where the numbers of a step lie in one run of bytes. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Every part begins at a multiple of this, so that a kernel compiled for one step fits all.
_ALIGNMENT = 16
_LONG, _INT = np.dtype(np.int64), np.dtype(np.int32)


@dataclass(frozen=True)
class BatchLayout:
    """Where the parts of a step lie. Steps of equal layout have equal addresses."""

    num_tokens: int
    num_seqs: int
    #: Blocks per row of the block tables.
    table_width: int
    #: Of layers that share block tables: each has tables and slots.
    num_groups: int = 1

    @cached_property
    def parts(self) -> dict[str, tuple[int, np.dtype[np.int64] | np.dtype[np.int32], int]]:
        """Name to offset in bytes, dtype and number of elements."""
        tokens, seqs = self.num_tokens, self.num_seqs
        sizes = (
            ("token_ids", _LONG, tokens),
            ("positions", _LONG, tokens),
            ("slots", _LONG, self.num_groups * tokens),
            # Row of the sequence whose last sampled token, still on the device, goes here; or -1.
            ("fed_rows", _LONG, tokens),
            # Of the sequences that are sampled: their tokens in the batch from which tokens are
            # chosen, and their rows.
            ("logits_at", _LONG, tokens),
            ("sampled_rows", _LONG, seqs),
            ("query_start_loc", _INT, seqs + 1),
            ("seq_lens", _INT, seqs),
            ("block_tables", _INT, self.num_groups * seqs * self.table_width),
        )
        parts, offset = {}, 0
        for name, dtype, num in sizes:
            parts[name] = (offset, dtype, num)
            offset += -(-num * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return parts

    @cached_property
    def num_bytes(self) -> int:
        """All of it."""
        offset, dtype, num = self.parts["block_tables"]
        return offset + num * dtype.itemsize
