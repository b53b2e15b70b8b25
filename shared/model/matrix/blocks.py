"""A matrix whose rows are bytes of a file: codes that are not taken apart, and may have scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from shared.errors import InternalError
from shared.model.matrix.quantized import QuantizedMatrix, concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

#: A kind: words of 32 bits with eight codes, the first one the lowest, to which 8 was added.
WORDS = "words"
#: Numbers that are dequantised at a time.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of one tensor."""

    #: uint8 [rows, bytes of a row], one behind the other.
    data: Tensor
    #: Takes some of them apart. Raises ModelLoadError: a scale is not finite; names the tensor.
    read: Callable[[BlockRows], QuantizedMatrix]
    #: int32: which of them, in their order; None: all.
    order: Tensor | None = None
    #: Of words: those of each row. See `QuantizedMatrix`.
    scales: Tensor | None = None
    zeros: Tensor | None = None

    @property
    def num(self) -> int:
        """How many there are."""
        return len(self.data if self.order is None else self.order)

    def all(self) -> Tensor:
        """Return them one behind the other."""
        return self.data if self.order is None else self.data[self.order]

    def at(self, where: slice | Tensor) -> BlockRows:
        """Return some of them."""
        scales, zeros = (
            None if each is None else each[where] for each in (self.scales, self.zeros)
        )
        own = replace(self, scales=scales, zeros=zeros)
        if self.order is not None:
            return replace(own, order=self.order[where])
        if isinstance(where, slice):
            return replace(own, data=self.data[where])
        return replace(own, order=where.int())

    def split(self, step: int) -> Iterator[BlockRows]:
        """Yield at most `step` of them at a time."""
        for start in range(0, self.num, step):
            yield self.at(slice(start, start + step))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMatrix:
    """See `QuantizedMatrix`, which `quantized` makes of it. Codes are integers, or mean some."""

    parts: tuple[BlockRows, ...]
    #: The type of blocks, as llama.cpp names it; or `WORDS`.
    kind: str
    columns: int
    #: Columns that are not divided: their bytes, and what they have scales for, are neighbours.
    unit: int
    bits: int
    group: int
    #: Codes are places in a table of integers.
    has_table: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return sum(part.num for part in self.parts), self.columns

    @property
    def inputs(self) -> None:
        """See `QuantizedMatrix.inputs`."""
        return

    @property
    def column_groups(self) -> None:
        """See `QuantizedMatrix.column_groups`."""
        return

    def quantized(self) -> QuantizedMatrix:
        """Take all blocks apart. Raises as `BlockRows.read`."""
        whole = concatenate([part.read(part) for part in self.parts])
        if whole is None:
            raise InternalError(f"rows of {self.kind} cannot be joined")
        return whole

    def write(self, out: Tensor) -> None:
        """See `QuantizedMatrix.write`. Raises as `BlockRows.read`."""
        step, start = max(1, _AT_ONCE // max(1, self.columns)), 0
        for part in self.parts:
            for rows in part.split(step):
                part.read(rows).write(out[start : start + rows.num])
                start += rows.num

    def dense(self, dtype: torch.dtype) -> Tensor:
        """See `QuantizedMatrix.dense`."""
        out = torch.empty(self.shape, dtype=dtype)
        self.write(out)
        return out

    def take(self, rows: Sequence[int] | Tensor) -> BlockMatrix:
        """See `QuantizedMatrix.take`."""
        (own,) = self.parts
        return replace(self, parts=(own.at(torch.as_tensor(rows)),))

    def take_columns(self, columns: range) -> AnyMatrix:
        """See `QuantizedMatrix.take_columns`. Blocks that are cut are taken apart."""
        (own,) = self.parts
        if columns.start % self.unit or columns.stop % self.unit:
            return self.quantized().take_columns(columns)
        width = own.data.shape[1]
        first, end = (at * width // self.columns for at in (columns.start, columns.stop))
        groups = slice(columns.start // self.group, -(-columns.stop // self.group))
        scales, zeros = (
            None if each is None else each[:, groups].contiguous()
            for each in (own.scales, own.zeros)
        )
        data = own.data[:, first:end].contiguous()
        part = replace(own, data=data, scales=scales, zeros=zeros)
        group = min(self.group, len(columns))
        return replace(self, parts=(part,), columns=len(columns), group=group)

    def split(self, num: int) -> Iterator[BlockMatrix]:
        """See `QuantizedMatrix.split`."""
        (own,) = self.parts
        for rows in own.split(own.num // num):
            yield replace(self, parts=(rows,))

    def in_turn(self, other: BlockMatrix) -> BlockMatrix:
        """Return the rows of two matrices of one type in turn."""
        (own,), (theirs,) = self.parts, other.parts
        data = torch.stack([own.data, theirs.data], dim=1).flatten(0, 1)
        return replace(self, parts=(replace(own, data=data),))


AnyMatrix: TypeAlias = "QuantizedMatrix | BlockMatrix"


def quantized(matrix: AnyMatrix) -> QuantizedMatrix:
    """Return a matrix taken apart."""
    return matrix.quantized() if isinstance(matrix, BlockMatrix) else matrix


def join_blocks(parts: Sequence[AnyMatrix]) -> BlockMatrix | None:
    """Return one matrix with the rows of all; None: they are not all blocks of one type."""
    own = [part for part in parts if isinstance(part, BlockMatrix)]
    if len(own) < len(parts) or any(
        (part.kind, part.columns, part.group) != (own[0].kind, own[0].columns, own[0].group)
        for part in own
    ):
        return None
    return replace(own[0], parts=tuple(rows for part in own for rows in part.parts))
