"""Matrices of blocks as the native library's records."""

from __future__ import annotations

from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kernels.native.kinds import BlockType, CodeKind
from kernels.native.structures import BlockRows, Blocks, Codes
from shared.model.matrix.pieces import joined_as_floats
from shared.model.native.records.codes import CodesRecord

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.matrix.blocks import BlockMatrix
    from shared.model.matrix.blocks import BlockRows as StoredRows


@dataclass(frozen=True, slots=True)
class BlocksRecord:
    """A record of the library, and what it refers to."""

    record: Blocks
    kept: tuple[Any, ...]


def blocks_record(matrix: BlockMatrix, *, rounds_rows: bool) -> BlocksRecord:
    """Return the record of a matrix."""
    rows = (BlockRows * len(matrix.parts))(*map(_rows, matrix.parts))
    columns, inner = matrix.shape
    record = Blocks(
        type=BlockType[matrix.kind],
        parts=cast(rows, POINTER(BlockRows)),
        columns=columns,
        inner=inner,
        rounds_rows=rounds_rows,
    )
    return BlocksRecord(record, (rows, matrix))


def words_record(matrix: BlockMatrix, *, rounds_rows: bool) -> CodesRecord:
    """Return the record of a matrix of words."""
    rows = (BlockRows * len(matrix.parts))(*map(_rows, matrix.parts))
    scales = joined_as_floats([each.scales for each in matrix.parts if each.scales is not None])
    zeros: Tensor | None = None
    if any(part.zeros is not None for part in matrix.parts):
        zeros = torch.cat([_zeros(part) for part in matrix.parts])
    columns, inner = matrix.shape
    record = Codes(
        kind=CodeKind.FOURS,
        least=-8,
        most=7,
        scales=scales.data_ptr(),
        zeros=None if zeros is None else zeros.data_ptr(),
        columns=columns,
        inner=inner,
        group=min(matrix.group, inner),
        rounds_rows=rounds_rows,
        rows=cast(rows, POINTER(BlockRows)),
    )
    return CodesRecord(record, (rows, matrix, scales, zeros))


def _zeros(part: StoredRows) -> Tensor:
    assert part.scales is not None
    return torch.zeros_like(part.scales, dtype=torch.int8) if part.zeros is None else part.zeros


def _rows(part: StoredRows) -> BlockRows:
    order = None if part.order is None else part.order.data_ptr()
    return BlockRows(begin=part.data.data_ptr(), count=part.num, order=order)
