"""Makes a matrix of its stored tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.matrices.bits import (
    crossed,
    float_table,
    from_planes,
    signed,
    unpack,
    whole_parts,
)
from shared.model.checkpoint.matrices.shapes import (
    check_matrix,
    check_size,
    size_by_headers,
    stored_shape,
)
from shared.model.matrix.blocks import WORDS, BlockMatrix, BlockRows
from shared.model.matrix.inputs import InputRounding
from shared.model.matrix.pieces import all_finite
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from shared.model.checkpoint.matrices.layout import Array, Layout, Nested, StoredMatrix

#: Codes of 4 bits in a word of 32.
_PER_WORD = 8


def read_matrix(
    matrix: StoredMatrix, tensors: Mapping[str, Tensor], rows: int, columns: int
) -> QuantizedMatrix:
    """Return the matrix of these tensors, by suffix.

    Raises:
        ModelLoadError: one is missing, or of a wrong shape, dtype or value.
    """
    reader, layout = _checked(matrix, tensors, rows, columns), matrix.layout
    ranges, groups = layout.scale_shape(rows, columns)
    return QuantizedMatrix(
        codes=reader.codes(rows, columns),
        bits=layout.bits,
        scales=reader.scales(ranges, groups),
        zeros=reader.zeros(ranges, groups),
        row_range=layout.row_range or rows,
        group=layout.group or columns,
        column_groups=reader.column_groups(columns, groups),
        inputs=reader.inputs(),
        table=None if layout.table is None else tensors[layout.table].float(),
    )


def read_words(
    matrix: StoredMatrix, tensors: Mapping[str, Tensor], rows: int, columns: int
) -> BlockMatrix | None:
    """Return the same with its codes as they are stored; None: they are no such words.

    Raises as `read_matrix`.
    """
    layout = matrix.layout
    group = min(layout.group or columns, columns)
    if not layout.has_words or columns % _PER_WORD or group % _PER_WORD:
        return None
    reader = _checked(matrix, tensors, rows, columns)
    own = BlockRows(
        data=reader.words(rows, columns),
        read=partial(_of_words, group),
        scales=reader.scales(rows, -(-columns // group)),
        zeros=reader.zeros(rows, -(-columns // group)),
    )
    unit = _PER_WORD if group == columns else group
    return BlockMatrix(
        parts=(own,), kind=WORDS, columns=columns, unit=unit, bits=layout.bits, group=group
    )


def _of_words(group: int, rows: BlockRows) -> QuantizedMatrix:
    assert rows.scales is not None
    codes = signed(whole_parts(rows.all(), 4), 4, is_offset=True)
    return QuantizedMatrix(
        codes=codes.view(rows.num, -1), bits=4, scales=rows.scales, zeros=rows.zeros, group=group
    )


def _checked(
    matrix: StoredMatrix, tensors: Mapping[str, Tensor], rows: int, columns: int
) -> _Reader:
    """Return a reader of tensors that fit the matrix. Raises as `read_matrix`."""
    check_matrix(matrix, rows, columns)
    layout = matrix.layout
    if layout.size is not None and tensors[layout.size].tolist() != [rows, columns]:
        raise _error(matrix, layout.size, f"is not {[rows, columns]}")
    for suffix, wanted in layout.constants.items():
        if int(tensors[suffix]) != wanted:
            raise _error(matrix, suffix, f"is not {wanted} but {int(tensors[suffix])}")
    return _Reader(matrix, tensors, read_state(matrix, tensors, rows, columns))


def stored_size(matrix: StoredMatrix, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the rows and columns that a matrix has, where no model asks for some.

    Raises:
        ModelLoadError: its tensors do not say it.
    """
    layout = matrix.layout
    check_size(matrix)
    if layout.size is not None:
        rows, columns = tensors[layout.size].tolist()
    elif layout.state is not None:
        rows, columns = State.read(matrix, tensors).shape
    else:
        rows, columns = size_by_headers(matrix)
    return rows, columns


def read_state(
    matrix: StoredMatrix, tensors: Mapping[str, Tensor], rows: int, columns: int
) -> State | None:
    """Return what a matrix says of itself, if it does and that is its size.

    Raises:
        ModelLoadError: it says something else.
    """
    layout = matrix.layout
    if layout.state is None:
        return None
    state = State.read(matrix, tensors)
    if state.shape != (rows, columns) or state.block != layout.group:
        raise _error(
            matrix,
            layout.state,
            f"says shape {list(state.shape)} and blocksize {state.block}, "
            f"not {[rows, columns]} and {layout.group}",
        )
    return state


@dataclass(frozen=True, slots=True)
class State:
    """What a matrix says of itself."""

    shape: tuple[int, ...]
    block: int
    #: Of nested scales.
    offset: float

    @classmethod
    def read(cls, matrix: StoredMatrix, tensors: Mapping[str, Tensor]) -> State:
        """Read the JSON object. Raises ModelLoadError: it is damaged."""
        suffix = matrix.layout.state
        assert suffix is not None
        try:
            own = json.loads(bytes(tensors[suffix].tolist()))
            shape = tuple(map(int, own["shape"]))
            return cls(shape, int(own["blocksize"]), float(own.get("nested_offset", 0.0)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _error(matrix, suffix, f"is damaged: {error}") from error


class _Reader:
    """The tensors of one matrix."""

    def __init__(
        self, matrix: StoredMatrix, tensors: Mapping[str, Tensor], state: State | None
    ) -> None:
        self._matrix = matrix
        self._state = state
        self._layout: Layout = matrix.layout
        self._tensors = tensors

    def codes(self, rows: int, columns: int) -> Tensor:
        layout = self._layout
        values = self._array(layout.codes, rows, columns)
        if layout.table is not None or layout.has_float_zeros:
            return values
        if layout.element is Element.INT:
            return signed(values, layout.bits, is_offset=layout.is_offset)
        if values.dtype.is_floating_point:
            return values
        table = float_table(layout.element).view(torch.uint8)
        found = table.index_select(0, values.flatten().int())
        return found.view(values.shape).view(torch.float8_e4m3fn)

    def words(self, rows: int, columns: int) -> Tensor:
        """The bytes of the codes of each row, see `Layout.has_words`."""
        lines, packing = self._stored(self._layout.codes, rows, columns), self._layout.codes.packing
        assert packing is not None
        if not packing.is_along_rows:
            lines = crossed(lines.T, packing.order or range(_PER_WORD))
        return lines.contiguous().flatten().view(torch.uint8).view(rows, -1)

    def scales(self, ranges: int, groups: int) -> Tensor:
        layout = self._layout
        scales = self._array(layout.scales, ranges, groups)
        if layout.nested is not None:
            scales = self._opened(scales, layout.nested)
        elif layout.are_powers:
            scales = scales.view(torch.float8_e8m0fnu).float()
        elif scales.dtype.itemsize == 1:
            scales = scales.float()
        if layout.factor is not None:
            factor = self._tensors[layout.factor.suffix].float().reshape(())
            scales = scales / factor if layout.factor.divides else scales * factor
        if layout.scale_factor != 1.0:
            scales = scales.float() * layout.scale_factor
        self._check_finite(scales, layout.scales, "scale")
        return scales

    def _check_finite(self, values: Tensor, array: Array, what: str) -> None:
        if not all_finite(values):
            raise _error(self._matrix, array.suffix, f"has a {what} that is not finite")

    def _opened(self, places: Tensor, nested: Nested) -> Tensor:
        table, own = self._tensors[nested.table], self._tensors[nested.scales]
        values = table.index_select(0, places.flatten().int())
        wide = own.repeat_interleave(nested.group)[: len(values)]
        offset = 0.0 if self._state is None else self._state.offset
        return (values * wide + offset).view(places.shape)

    def zeros(self, ranges: int, groups: int) -> Tensor | None:
        layout = self._layout
        if layout.zeros is None:
            return None
        values = self._array(layout.zeros, ranges, groups)
        if layout.has_float_zeros:
            self._check_finite(values, layout.zeros, "zero")
            return values
        if layout.zero_step:
            values = (values + layout.zero_step) & (2**layout.bits - 1)
        zeros = signed(values, layout.bits, is_offset=layout.is_offset)
        return zeros if zeros.any() else None

    def column_groups(self, columns: int, groups: int) -> Tensor | None:
        name = self._layout.column_groups
        if name is None:
            return None
        own = self._tensors[name].long()
        if own.min() < 0 or own.max() >= groups:
            raise _error(self._matrix, name, f"has a group that is not from 0 to {groups - 1}")
        usual = torch.arange(columns) // (self._layout.group or columns)
        return None if torch.equal(own, usual) else own

    def inputs(self) -> InputRounding | None:
        layout = self._layout
        if layout.inputs is None:
            return None
        stored, zero = self._scalar(layout.input_stored), self._scalar(layout.input_zero)
        return InputRounding(layout.inputs, stored, zero)

    def _scalar(self, suffix: str | None) -> Tensor | None:
        return None if suffix is None else self._tensors[suffix].float().reshape(())

    def _array(self, array: Array, rows: int, columns: int) -> Tensor:
        """Numbers by row and column, packed ones as uint8."""
        tensor, packing = self._stored(array, rows, columns), array.packing
        if array.planes is not None:
            return from_planes(tensor, array.planes, rows * columns).view(rows, columns)
        if packing is None:
            return tensor.contiguous()
        if packing.is_along_rows:
            return unpack(tensor, packing, columns)
        return unpack(tensor.T, packing, rows).T.contiguous()

    def _stored(self, array: Array, rows: int, columns: int) -> Tensor:
        """Elements by row and column, of which one may have several numbers."""
        header = self._matrix.header(array.suffix)
        tensor = self._tensors[array.suffix]
        tensor = tensor.reshape(stored_shape(array, header, rows, columns))
        if array.piece is not None:
            tensor = tensor.flatten(1)
        if array.is_flat:
            tensor = tensor.flatten().repeat(array.repeats).view(rows, -1)
        return tensor.T if array.is_turned else tensor


def _error(matrix: StoredMatrix, suffix: str, what: str) -> ModelLoadError:
    path = matrix.header(suffix).path
    return ModelLoadError(f"{path}: tensor {matrix.module + suffix!r} {what}")
