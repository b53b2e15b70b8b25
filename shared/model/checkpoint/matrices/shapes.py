"""Comparison of a matrix's tensors with the size that the model asks for, by headers alone."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.checkpoint.matrices.layout import FLOATS, Array, StoredMatrix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.matrices.layout import Layout

_INTEGERS = ("U8", "I32", "I64")
_SCALARS: set[tuple[int, ...]] = {(), (1,), (1, 1)}


def check_matrix(matrix: StoredMatrix, rows: int, columns: int) -> None:
    """Check that all tensors of a matrix are there, with the shapes and dtypes that it needs.

    rows: of all experts, if they are in one.

    Raises:
        ModelLoadError: names the file and the tensor.
    """
    layout = matrix.layout
    if layout.state is not None:
        _check_dtype(matrix, layout.state, matrix.header(layout.state), ("U8",))
    check_size(matrix)
    _check_array(matrix, layout.codes, rows, columns)
    if layout.has_whole_groups and layout.group and columns % layout.group:
        raise ModelLoadError(
            f"{matrix.path}: tensor {matrix.module + layout.codes.suffix!r} has {columns} columns, "
            f"which are no whole groups of {layout.group}, as quantization_config says"
        )
    if rows * columns % layout.scales.repeats:
        raise ModelLoadError(
            f"{matrix.path}: tensor {matrix.module + layout.codes.suffix!r} has {rows} rows of "
            f"{columns} numbers, which are no whole groups of {layout.scales.repeats}, as "
            "quantization_config says"
        )
    ranges, groups = layout.scale_shape(rows, columns)
    for array in layout.arrays[1:]:
        _check_array(matrix, array, ranges, groups)
    for suffix, dtypes, shapes in _small_ones(layout, columns, ranges * groups):
        if suffix is not None:
            header = matrix.header(suffix)
            _check_dtype(matrix, suffix, header, dtypes)
            if header.shape not in shapes:
                raise _wrong_shape(matrix, suffix, header, max(shapes, key=len))


def check_size(matrix: StoredMatrix) -> None:
    """Check that the tensor with the numbers of rows and columns is there, if a matrix has one.

    Raises:
        ModelLoadError: names the file and the tensor.
    """
    suffix = matrix.layout.size
    if suffix is None:
        return
    header = matrix.header(suffix)
    _check_dtype(matrix, suffix, header, ("I64", "I32"))
    if header.shape != (2,):
        raise _wrong_shape(matrix, suffix, header, (2,))


def _small_ones(
    layout: Layout, columns: int, num_scales: int
) -> list[tuple[str | None, tuple[str, ...], set[tuple[int, ...]]]]:
    """Suffix, dtypes and shapes of what is not by row and column; without a suffix it is absent."""
    nested = layout.nested
    runs = 0 if nested is None else -(-num_scales // nested.group)
    return [
        (None if layout.factor is None else layout.factor.suffix, FLOATS, _SCALARS),
        (layout.input_stored, FLOATS, _SCALARS),
        (layout.input_zero, (*FLOATS, "I8", "I32", "U8"), _SCALARS),
        (layout.column_groups, ("I32", "I64"), {(columns,)}),
        (layout.table, ("F32",), {(2**layout.bits,)}),
        *((suffix, _INTEGERS, _SCALARS) for suffix in layout.constants),
        (None if nested is None else nested.table, ("F32",), {(256,)}),
        (None if nested is None else nested.scales, ("F32",), {(runs,)}),
    ]


def size_by_headers(matrix: StoredMatrix) -> tuple[int, int]:
    """Return the rows and columns that a matrix's tensors have, where no model asks for some.

    Numbers that fill up a last word are among the columns, unless a tensor names the columns.

    Raises:
        ModelLoadError: its codes are missing, or in no matrix.
    """
    layout, header = matrix.layout, matrix.codes
    _check_dtype(matrix, layout.codes.suffix, header, layout.codes.dtypes)
    if len(header.shape) < 2 + (layout.codes.piece is not None):
        raise ModelLoadError(
            f"{header.path}: tensor {matrix.module + layout.codes.suffix!r} has shape "
            f"{list(header.shape)}, which is no matrix"
        )
    rows, columns = layout.codes.size(header.shape, header.dtype)
    if layout.column_groups is not None:
        columns = prod(matrix.header(layout.column_groups).shape)
    return rows, columns


def stored_shape(array: Array, header: TensorHeader, rows: int, columns: int) -> tuple[int, ...]:
    """Return the shape of a matrix's tensor, with all rows in one dimension."""
    return array.shape(rows, columns, header.dtype)


def _check_array(matrix: StoredMatrix, array: Array, rows: int, columns: int) -> None:
    header = matrix.header(array.suffix)
    _check_dtype(matrix, array.suffix, header, array.dtypes)
    wanted = stored_shape(array, header, rows, columns)
    extra = len(header.shape) - len(wanted)
    shape = header.shape
    if extra > 0:  # experts are in a dimension of their own
        shape = (prod(shape[: extra + 1]), *shape[extra + 1 :])
    if _without_ones(shape) != _without_ones(wanted):
        raise _wrong_shape(matrix, array.suffix, header, wanted)


def _check_dtype(
    matrix: StoredMatrix, suffix: str, header: TensorHeader, dtypes: Iterable[str]
) -> None:
    if header.dtype not in dtypes:
        raise ModelLoadError(
            f"{header.path}: tensor {matrix.module + suffix!r} has dtype {header.dtype}, "
            f"its format has {' or '.join(dtypes)}"
        )


def _wrong_shape(
    matrix: StoredMatrix, suffix: str, header: TensorHeader, wanted: tuple[int, ...]
) -> ModelLoadError:
    return ModelLoadError(
        f"{header.path}: tensor {matrix.module + suffix!r} has shape {list(header.shape)}, "
        f"the config and quantization_config ask for {list(wanted)}"
    )


def _without_ones(shape: Iterable[int]) -> list[int]:
    return [size for size in shape if size != 1]
