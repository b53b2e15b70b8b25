"""Packing of sequences' next tokens into a batch for a draft with a cache of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence as Seq


@dataclass(frozen=True, slots=True)
class DraftRow:
    """Tokens of one sequence to compute, from index `first` of its draft KV on."""

    token_ids: Seq[int]
    first: int
    #: The pages of the sequence's draft KV.
    table: array[int]
    #: Position of the token at index 0.
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """A packed batch, on the model's device."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    metadata: AttentionMetadata
    #: [rows] int64: index of the last token of each row.
    last: torch.Tensor


def pack(
    rows: Seq[DraftRow], page_size: int, device: torch.device, *, wanted: Seq[int] | None = None
) -> DraftBatch:
    """Pack all rows into one batch. Last hidden states only for rows in `wanted`, if given."""
    lens = np.array([len(row.token_ids) for row in rows])
    firsts = np.array([row.first for row in rows])
    ends = np.cumsum(lens)
    row_of = np.repeat(np.arange(len(rows)), lens)
    places = np.arange(ends[-1]) + np.repeat(firsts - (ends - lens), lens)
    tables = np.zeros((len(rows), max(len(row.table) for row in rows)), dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.table)] = row.table
    shifts = np.array([row.first_position for row in rows])
    slots = tables[row_of, places // page_size].astype(np.int64) * page_size + places % page_size
    seq_lens = firsts + lens

    def put(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)

    last = put(ends - 1, torch.int64)
    return DraftBatch(
        token_ids=put(np.concatenate([row.token_ids for row in rows]), torch.int64),
        positions=put(places + shifts[row_of], torch.int64),
        metadata=AttentionMetadata(
            query_start_loc=put(np.concatenate(([0], ends)), torch.int32),
            seq_lens=put(seq_lens, torch.int32),
            block_tables=put(tables, torch.int32),
            slot_mapping=put(slots, torch.int64),
            query_lens_list=lens.tolist(),
            seq_lens_list=seq_lens.tolist(),
            wanted=None if wanted is None else last[list(wanted)],
            wanted_list=() if wanted is None else (ends - 1)[list(wanted)].tolist(),
        ),
        last=last,
    )
