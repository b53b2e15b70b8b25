"""A scheduled step as the tensors that the model takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shared.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """All sequences' new tokens behind each other."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    metadata: AttentionMetadata
    #: Where each sequence's tokens begin, and after the last one the end.
    starts: list[int]


def build_batch(
    num_new_tokens: Mapping[Sequence, int], *, block_size: int, device: torch.device
) -> Batch:
    """Lay out `num_new_tokens` of each sequence after those that are computed."""
    seqs = list(num_new_tokens)
    query_lens = list(num_new_tokens.values())
    seq_lens = [seq.num_computed_tokens + n for seq, n in zip(seqs, query_lens, strict=True)]
    starts = [0, *np.cumsum(query_lens).tolist()]
    tables = _block_tables(seqs)
    token_ids = np.empty(starts[-1], dtype=np.int64)
    positions = np.empty(starts[-1], dtype=np.int64)
    slots = np.empty(starts[-1], dtype=np.int64)
    for row, seq in enumerate(seqs):
        here = slice(starts[row], starts[row + 1])
        first, end = seq.num_computed_tokens, seq_lens[row]
        token_ids[here] = seq.token_ids[first:end]
        positions[here] = own = np.arange(first, end)
        slots[here] = tables[row, own // block_size].astype(np.int64) * block_size
        slots[here] += own % block_size

    def tensor(array: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    metadata = AttentionMetadata(
        query_start_loc=tensor(np.array(starts, dtype=np.int32)),
        seq_lens=tensor(np.array(seq_lens, dtype=np.int32)),
        block_tables=tensor(tables),
        slot_mapping=tensor(slots),
        query_lens_list=query_lens,
        seq_lens_list=seq_lens,
    )
    return Batch(tensor(token_ids), tensor(positions), metadata, starts)


def _block_tables(seqs: list[Sequence]) -> NDArray[np.int32]:
    """[n, longest table]; what lies beyond a sequence's own blocks is never read."""
    tables = np.zeros((len(seqs), max(len(seq.block_table) for seq in seqs)), dtype=np.int32)
    for row, seq in enumerate(seqs):
        tables[row, : len(seq.block_table)] = seq.block_table
    return tables
