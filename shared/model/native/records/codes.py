"""Matrices of few bits, and how their inputs are rounded, as the native library's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kernels.native.kinds import CodeKind, Grid
from kernels.native.kinds import ScaleRule as NativeScaleRule
from kernels.native.structures import Codes
from kernels.native.structures import Rounding as RoundingRecord
from shared.model.matrix.blocks import BlockMatrix
from shared.model.matrix.ordering import has_even_groups, in_groups
from shared.model.matrix.rounding import Element, ScaleRule
from shared.model.native.records.tables import integer_table, places
from shared.model.sharding.inputs import SharedRounding

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.matrix.inputs import InputRounding
    from shared.model.matrix.quantized import QuantizedMatrix

#: Codes that the library packs into a word of 32 bits.
_PER_WORD = {
    CodeKind.INT8: 1,
    CodeKind.FOURS: 8,
    CodeKind.EIGHTS: 4,
    CodeKind.FLOAT8S: 4,
    CodeKind.LOOKED: 8,
}
_MOST_BITS_OF_FOURS = 4
_INTEGERS = (CodeKind.FOURS, CodeKind.EIGHTS, CodeKind.LOOKED)
#: Numbers of a rounded row that share a scale.
_PIECE = 32
#: Scales of 8-bit floats are below: those of the library's numbers are 2^120 times as large.
_SCALE_BOUND = 128.0

_GRIDS = {
    Element.INT: Grid.INT,
    Element.E2M1: Grid.E2M1,
    Element.E2M3: Grid.E2M3,
    Element.E3M2: Grid.E3M2,
    Element.E4M3: Grid.E4M3,
    Element.E5M2: Grid.E5M2,
}
_RULES = {
    ScaleRule.FLOAT: NativeScaleRule.FLOAT,
    ScaleRule.POWER: NativeScaleRule.POWER,
    ScaleRule.POWER_ABOVE: NativeScaleRule.POWER_ABOVE,
    ScaleRule.E4M3: NativeScaleRule.E4M3,
    ScaleRule.E4M3_TIMES: NativeScaleRule.E4M3_TIMES,
}


#: Rows of 8 bits for a dense weight, of each of which a rank has a part.
SHARED_ROWS = RoundingRecord(grid=Grid.NONE, is_shared=True)


def code_kind(matrix: AnyMatrix) -> CodeKind | None:
    """Return the library's type for a matrix's codes; None: it has none."""
    if isinstance(matrix, BlockMatrix):
        return kind_of_blocks(matrix)
    kind = _kind_of_codes(matrix)
    if kind is None or not _has_even_groups(matrix):
        return None
    columns = matrix.shape[1]
    of_words = columns % _PER_WORD[kind] == min(matrix.group, columns) % _PER_WORD[kind] == 0
    return kind if of_words else None


def kind_of_blocks(matrix: BlockMatrix) -> CodeKind:
    """Return the library's type for the codes of blocks."""
    if matrix.has_table:
        return CodeKind.LOOKED
    return CodeKind.FOURS if matrix.bits <= _MOST_BITS_OF_FOURS else CodeKind.EIGHTS


def _kind_of_codes(matrix: QuantizedMatrix) -> CodeKind | None:
    if integer_table(matrix) is not None:
        return CodeKind.LOOKED
    if matrix.codes.dtype == torch.float8_e4m3fn:
        return CodeKind.FLOAT8S if matrix.scales.abs().max() < _SCALE_BOUND else None
    if matrix.codes.dtype != torch.int8 or matrix.table is not None:
        return None
    if matrix.bits <= _MOST_BITS_OF_FOURS:
        return CodeKind.FOURS
    return CodeKind.INT8 if _multiplies_integers(matrix) else CodeKind.EIGHTS


def _has_even_groups(matrix: QuantizedMatrix) -> bool:
    """Whether groups are ranges of columns, or would be in another order of plain inputs."""
    return has_even_groups(matrix) and (matrix.column_groups is None or matrix.inputs is None)


def _multiplies_integers(matrix: QuantizedMatrix) -> bool:
    """Whether rounded inputs are integers, too, and both have a scale for each row."""
    if matrix.inputs is None or matrix.zeros is not None or matrix.offsets is not None:
        return False
    rule = matrix.inputs.rule
    return matrix.scales.shape[1] == 1 and rule.element is Element.INT and rule.group is None


def has_pieces(matrix: AnyMatrix, kind: CodeKind) -> bool:
    """Return whether the library can multiply such codes with rows that are bytes in pieces.

    Each piece of a row meets one group, or two halves of it meet two. Inputs that a format rounds
    are such rows if they are integers but for their scales.
    """
    columns = matrix.shape[1]
    if kind not in _INTEGERS or matrix.column_groups is not None:
        return False
    has_halves = matrix.group == _PIECE // 2 and columns % _PIECE == 0
    if not has_halves and matrix.group % _PIECE != 0 and matrix.group < columns:
        return False
    return matrix.inputs is None or _are_pieces(matrix.inputs, kind, has_halves=has_halves)


def _are_pieces(inputs: InputRounding, kind: CodeKind, *, has_halves: bool) -> bool:
    rule = inputs.rule
    if not rule.is_symmetric or inputs.zero is not None:
        return False
    # The library multiplies -128 with codes of 4 bits alone.
    if rule.element is not Element.E2M1 and (
        rule.element is not Element.INT or kind is not CodeKind.FOURS
    ):
        return False
    is_half = has_halves and rule.group == _PIECE // 2
    return rule.group is None or rule.group % _PIECE == 0 or is_half


def _bounds(codes: Tensor, kind: CodeKind) -> tuple[int, int]:
    """Numbers that no code is below or above. Codes of 4 bits have room for sixteen."""
    if kind is CodeKind.FLOAT8S:
        return 0, 0
    least, most = (int(bound) for bound in codes.aminmax())
    if kind is CodeKind.FOURS:
        least = -(1 << (_MOST_BITS_OF_FOURS - 1)) if least < 0 else 0
        most = least + (1 << _MOST_BITS_OF_FOURS) - 1
    return least, most


@dataclass(frozen=True, slots=True)
class CodesRecord:
    """A record of the library, and the tensors that it refers to."""

    record: Codes
    kept: tuple[Any, ...]


def codes_record(matrix: QuantizedMatrix, kind: CodeKind, *, rounds_rows: bool) -> CodesRecord:
    """Return the record of a matrix whose `code_kind` is `kind`."""
    rows, columns_in_order = in_groups(matrix.by_rows())
    order = None if columns_in_order is None else columns_in_order.to(torch.int32)
    codes, scales = rows.codes.contiguous(), rows.scales.float().contiguous()
    table = integer_table(rows) if kind is CodeKind.LOOKED else None
    if table is not None:
        codes, scales = places(rows), scales * table.factor
    zeros = None if rows.zeros is None else rows.zeros.contiguous()
    offsets = None if rows.offsets is None else rows.offsets.float().contiguous()
    columns, inner = rows.shape
    kept_table = None if table is None else table.numbers
    least, most = _bounds(codes if table is None else table.numbers, kind)
    record = Codes(
        kind=kind,
        codes=codes.data_ptr(),
        least=least,
        most=most,
        table=None if table is None else table.numbers.data_ptr(),
        scales=scales.data_ptr(),
        zeros=None if zeros is None else zeros.data_ptr(),
        offsets=None if offsets is None else offsets.data_ptr(),
        columns=columns,
        inner=inner,
        group=min(rows.group, inner),
        order=None if order is None else order.data_ptr(),
        rounds_rows=rounds_rows,
    )
    return CodesRecord(record, (codes, scales, zeros, offsets, order, kept_table))


def rounding_record(inputs: InputRounding) -> RoundingRecord:
    """Return the record of how the inputs of a matrix are rounded."""
    rule = inputs.rule
    return RoundingRecord(
        grid=_GRIDS[rule.element],
        rule=_RULES[rule.scale],
        bits=rule.bits,
        group=rule.group or 0,
        is_static=rule.is_static,
        is_symmetric=rule.is_symmetric,
        even_bits=-1 if rule.even_bits is None else rule.even_bits,
        is_shared=isinstance(inputs, SharedRounding),
        bound=float("inf") if rule.bound is None else rule.bound,
        stored=0.0 if inputs.stored is None else float(inputs.stored),
        zero=0.0 if inputs.zero is None else float(inputs.zero),
    )
