"""Matrices of blocks as the native library's records."""

from __future__ import annotations

from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.native.library import BlockRows, Blocks, BlockType

if TYPE_CHECKING:
    from shared.model.linear.blocks import BlockMatrix
    from shared.model.linear.blocks import BlockRows as StoredRows


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
        num_parts=len(rows),
        columns=columns,
        inner=inner,
        rounds_rows=rounds_rows,
    )
    return BlocksRecord(record, (rows, matrix))


def _rows(part: StoredRows) -> BlockRows:
    order = None if part.order is None else part.order.data_ptr()
    return BlockRows(begin=part.data.data_ptr(), count=part.num, order=order)
