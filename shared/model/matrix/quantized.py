"""A matrix of few bits per number, as a checkpoint stores it: codes, scales, zeros or offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from shared.model.matrix.inputs import InputRounding

#: Numbers that are dequantised at a time.
_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrix:
    """A weight W [rows, columns], W[n, k] = (codes[n, k] - zeros[n', g]) * scales[n', g].

    The difference and the product are rounded to float32, or to the dtype of W if zeros are floats.
    With offsets it is codes[n, k] * scales[n', g] - offsets[n', g] instead, each operation rounded
    to float32. n' is the range of rows, g the group of columns that n and k are in. Rows are
    outputs. With a table, table[codes[n, k]] stands for codes[n, k].
    """

    #: int8, float8_e4m3fn or float8_e5m2 [rows, columns]. Floats of fewer bits are exact in E4M3.
    #: uint8 with a table, or with zeros that are floats.
    codes: Tensor
    #: Bits of a code as it is stored.
    bits: int
    #: Float32, float16 or bfloat16 [row ranges, groups], exactly as stored.
    scales: Tensor
    #: int8 or floats of the same shape; None: all are 0.
    zeros: Tensor | None = None
    #: Float32 or float16 of the same shape, never beside zeros; None: all are 0.
    offsets: Tensor | None = None
    #: Rows that share scales; the last range may be shorter.
    row_range: int = 1
    #: Columns of a group; the last group may be shorter.
    group: int
    #: int64 [columns]: the group of each, where groups are no ranges.
    column_groups: Tensor | None = None
    #: How the inputs are rounded; None: they are not.
    inputs: InputRounding | None = None
    #: Float32: the number that each code stands for.
    table: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.zeros is None or self.offsets is None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def has_float_zeros(self) -> bool:
        """Whether zeros are no integers."""
        return self.zeros is not None and self.zeros.is_floating_point()

    @property
    def num_bytes(self) -> int:
        """Memory of the record."""
        parts = (
            self.codes,
            self.scales,
            self.zeros,
            self.offsets,
            self.column_groups,
            self.table,
        )
        return sum(part.nbytes for part in parts if part is not None)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the weight, computed in float32 and rounded to `dtype`."""
        out = torch.empty(self.shape, dtype=dtype, device=self.codes.device)
        self.write(out)
        return out

    def write(self, out: Tensor) -> None:
        """Write the weight to a tensor of its shape. Needs memory for few rows at a time."""
        rows, columns = self.shape
        step = max(1, _AT_ONCE // max(1, columns))
        for start in range(0, rows, step):
            at = torch.arange(start, min(start + step, rows), device=self.codes.device)
            dtype = out.dtype if self.has_float_zeros else torch.float32
            values = _numbers(self.codes[start : start + step], self.table).to(dtype)
            grouped = self._by_group(values)
            if self.zeros is not None:
                grouped -= self._for_groups(self.zeros[at // self.row_range].to(dtype))
            grouped *= self._for_groups(self.scales[at // self.row_range].to(dtype))
            if self.offsets is not None:
                grouped -= self._for_groups(self.offsets[at // self.row_range].to(dtype))
            out[start : start + step].copy_(values)

    def take(self, rows: Sequence[int] | Tensor) -> QuantizedMatrix:
        """Return the matrix of these rows, in their order."""
        chosen = torch.as_tensor(rows, device=self.codes.device)
        codes = _as_bytes(self.codes)[chosen].view(self.codes.dtype)
        if len(self.scales) == 1:  # of all rows
            return replace(self, codes=codes, row_range=max(1, len(chosen)))
        return self._with_rows(codes, chosen // self.row_range)

    def take_columns(self, columns: range) -> QuantizedMatrix:
        """Return the matrix of these columns, which are neighbours.

        Groups that they do not have whole are no ranges any more, unless they are the last ones.
        """
        first, end = columns.start, columns.stop
        codes = _as_bytes(self.codes)[:, first:end].contiguous().view(self.codes.dtype)
        own = replace(self, codes=codes, column_groups=None)
        if self.column_groups is not None:
            return replace(own, column_groups=self.column_groups[first:end].clone())
        if self.scales.shape[1] == 1:
            return replace(own, group=max(1, len(columns)))
        groups = torch.arange(first, end, device=codes.device) // self.group
        if first % self.group:
            return replace(own, column_groups=groups)
        kept = slice(first // self.group, -(-end // self.group))
        return replace(
            own,
            scales=self.scales[:, kept].contiguous(),
            zeros=None if self.zeros is None else self.zeros[:, kept].contiguous(),
            offsets=None if self.offsets is None else self.offsets[:, kept].contiguous(),
        )

    def split(self, num: int) -> Iterator[QuantizedMatrix]:
        """Yield `num` matrices of equally many rows, one after the other."""
        if num == 1:
            yield self
            return
        size = self.shape[0] // num
        for start in range(0, self.shape[0], size):
            yield self.take(torch.arange(start, start + size))

    def by_rows(self) -> QuantizedMatrix:
        """Return the same matrix with scales of its own for each row."""
        if self.row_range == 1 and len(self.scales) == self.shape[0]:
            return self
        rows = torch.arange(self.shape[0], device=self.codes.device)
        return self._with_rows(self.codes, rows // self.row_range)

    def to(self, device: torch.device) -> QuantizedMatrix:
        """Return the matrix on a device."""
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
            offsets=None if self.offsets is None else self.offsets.to(device),
            column_groups=None if self.column_groups is None else self.column_groups.to(device),
            inputs=None if self.inputs is None else self.inputs.to(device),
            table=None if self.table is None else self.table.to(device),
        )

    def _with_rows(self, codes: Tensor, ranges: Tensor) -> QuantizedMatrix:
        return replace(
            self,
            codes=codes,
            scales=self.scales[ranges],
            zeros=None if self.zeros is None else self.zeros[ranges],
            offsets=None if self.offsets is None else self.offsets[ranges],
            row_range=1,
        )

    @property
    def _is_even(self) -> bool:
        """Whether groups are ranges of equally many columns."""
        return self.column_groups is None and self.shape[1] % self.group == 0

    def _by_group(self, values: Tensor) -> Tensor:
        """A view of [rows, columns] in which `_for_groups` can be broadcast."""
        return values.view(len(values), -1, self.group) if self._is_even else values

    def _for_groups(self, numbers: Tensor) -> Tensor:
        """Numbers by group, to be combined with those of `_by_group`."""
        if self._is_even:
            return numbers.unsqueeze(-1)
        columns = self.column_groups
        if columns is None:
            columns = torch.arange(self.shape[1], device=numbers.device) // self.group
        return numbers[:, columns]


def concatenate(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix | None:
    """Return one matrix with the rows of all, or None if they differ in more than their scales."""
    first, *others = parts
    if not others:
        return first
    if any(not _are_alike(first, other) for other in others):
        return None
    own = [part.by_rows() for part in parts]
    scales = [part.scales for part in own]
    zeros = _by_part([part.zeros for part in own], scales)
    offsets = _by_part([part.offsets for part in own], scales)
    if zeros is not None and offsets is not None:
        return None
    codes = torch.cat([_as_bytes(part.codes) for part in own]).view(first.codes.dtype)
    return replace(own[0], codes=codes, scales=_joined(scales), zeros=zeros, offsets=offsets)


def _are_alike(one: QuantizedMatrix, other: QuantizedMatrix) -> bool:
    # Codes with offsets may begin at 0 where others have a sign.
    if (one.codes.dtype, one.bits, one.group, one.shape[1], one.offsets is None) != (
        other.codes.dtype,
        other.bits,
        other.group,
        other.shape[1],
        other.offsets is None,
    ):
        return False
    parts = ((one.column_groups, other.column_groups), (one.table, other.table))
    return all(_equal(*pair) for pair in parts) and (
        one.inputs == other.inputs
        if one.inputs is None or other.inputs is None
        else one.inputs.equals(other.inputs)
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _by_part(parts: Sequence[Tensor | None], scales: Sequence[Tensor]) -> Tensor | None:
    """Numbers like the scales of all parts, those of some being 0; None: those of all are."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    return _joined(
        [
            torch.zeros_like(own, dtype=known.dtype) if part is None else part
            for part, own in zip(parts, scales, strict=True)
        ]
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All numbers, in float32 if the dtypes differ."""
    if any(part.dtype != parts[0].dtype for part in parts):
        return torch.cat([part.float() for part in parts])
    return torch.cat([*parts])


def _numbers(codes: Tensor, table: Tensor | None) -> Tensor:
    """Codes as float32. Those of floats are looked up: PyTorch takes five times as long."""
    if codes.dtype == torch.int8 or (codes.dtype == torch.uint8 and table is None):
        return codes.float()
    if table is None:
        every = torch.arange(256, dtype=torch.uint8, device=codes.device)
        table = every.view(codes.dtype).float()
    found = table.index_select(0, codes.contiguous().view(torch.uint8).flatten().int())
    return found.view(codes.shape)


def _as_bytes(codes: Tensor) -> Tensor:
    """The codes in a type that PyTorch can index on every device."""
    return codes.view(torch.int8)
