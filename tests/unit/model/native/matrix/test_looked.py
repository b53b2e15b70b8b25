"""Codes of 4 bits that stand for integers of a table, and inputs that are rounded to integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.native.kinds import CodeKind, Kind
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.inputs import InputRounding
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element, Rounding, ScaleRule
from shared.model.native.packing.packing import Packing
from shared.model.native.records.codes import code_kind, has_pieces
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import COLUMNS, NUM_ROWS, multiply
from tests.unit.model.native.matrix.test_fours import make_matrix as make_integers
from tests.unit.model.native.matrix.test_fours_int8 import rounded

INNER = 160
_E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def make_matrix(
    group: int, *, wide: bool = False, dtype: torch.dtype = torch.float32
) -> QuantizedMatrix:
    """Floats of 4 bits, or places in a table of numbers of 8 bits."""
    draw = torch.Generator().manual_seed(group)
    picked = torch.randint(0, 16, (COLUMNS, INNER), generator=draw)
    # All numbers of a column may be large and of one sign.
    picked[0] = 0 if wide else 15
    floats = torch.cat([_E2M1, -_E2M1])[picked].to(torch.float8_e4m3fn)
    scales = torch.rand(COLUMNS, INNER // group, generator=draw) * 0.01 + 0.001
    return QuantizedMatrix(
        codes=picked.to(torch.uint8) if wide else floats,
        bits=4,
        scales=scales.to(dtype),
        group=group,
        table=torch.tensor(_UNEVEN).float() if wide else None,
    )


def rounding(
    element: Element, group: int | None, scale: ScaleRule = ScaleRule.FLOAT
) -> InputRounding:
    bits = 8 if element is Element.INT else 4
    rule = Rounding(element=element, bits=bits, group=group, scale=scale)
    return InputRounding(rule=rule, stored=torch.tensor(300.0))


MATRICES = {
    "floats": make_matrix(32, dtype=torch.float16),
    "floats-halves": make_matrix(16),
    "floats-rows": make_matrix(INNER, dtype=torch.bfloat16),
    "wide": make_matrix(32, wide=True, dtype=torch.float16),
    "wide-halves": make_matrix(16, wide=True),
}
WITH_INPUTS = {
    "mxfp4": replace(make_matrix(32), inputs=rounding(Element.E2M1, 32, ScaleRule.POWER)),
    "nvfp4": replace(make_matrix(16), inputs=rounding(Element.E2M1, 16, ScaleRule.E4M3)),
    "wide": replace(make_matrix(32, wide=True), inputs=rounding(Element.E2M1, 64)),
    "w4a8": replace(
        make_integers(group=32, dtype=torch.float16), inputs=rounding(Element.INT, None)
    ),
    "w4a8-zeros": replace(
        make_integers(group=64, dtype=torch.float16, zeros="each"),
        inputs=rounding(Element.INT, 64),
    ),
}


def linear_of(inner: int) -> FusedLinear:
    return FusedLinear(in_size=inner, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)


def make_packing(*, rounds_inputs: bool = False) -> Packing:
    threads = LibraryThreads(ThreadPlan(2))
    return Packing(threads, Kind.FLOAT32, rounds_inputs=rounds_inputs)


def drawn(inner: int) -> torch.Tensor:
    rows = torch.randn(max(NUM_ROWS), inner, generator=torch.Generator().manual_seed(3))
    rows[1] = -1.0
    rows[2, : inner // 2] = 0.0
    return rows


@pytest.mark.parametrize("name", MATRICES)
def test_rows_of_floats_give_the_bits_of_the_dense_product(name: str) -> None:
    matrix, packing = MATRICES[name], make_packing()
    assert code_kind(matrix) is CodeKind.LOOKED
    kept, size = packing.keep(matrix, linear_of(INNER)), packing.num_bytes
    dense = packing._matrix(matrix.dense(torch.float32), None)
    assert size < 0.25 * (packing.num_bytes - size)
    for count in NUM_ROWS:
        rows = drawn(INNER)[:count].contiguous()
        assert torch.equal(multiply(packing, kept.matrix, rows), multiply(packing, dense, rows))


@pytest.mark.parametrize("name", [*MATRICES, *(f"inputs-{name}" for name in WITH_INPUTS)])
def test_products_of_integers_are_exact_whatever_is_beside_them(name: str) -> None:
    own = name.removeprefix("inputs-")
    matrix = WITH_INPUTS[own] if name != own else MATRICES[name]
    assert has_pieces(matrix, code_kind(matrix) or CodeKind.INT8)
    inner = matrix.shape[1]
    rows, packing = drawn(inner), make_packing(rounds_inputs=matrix.inputs is None)
    numbers = rounded(rows) if matrix.inputs is None else matrix.inputs.apply(rows).double()
    expected = (numbers @ matrix.dense(torch.float32).double().T).float()
    kept = packing.keep(matrix, linear_of(inner))
    whole = multiply(packing, kept.matrix, rows)
    torch.testing.assert_close(whole, expected, rtol=3e-6, atol=3e-6)
    for count in NUM_ROWS:
        some = rows[:count].contiguous()
        assert torch.equal(multiply(packing, kept.matrix, some), whole[:count])


def test_inputs_that_are_no_such_integers_stay_floats() -> None:
    matrix = make_matrix(32)
    for inputs in (
        rounding(Element.INT, None),  # -128 has no opposite
        rounding(Element.E4M3, 32),
        rounding(Element.E2M1, 48),
        rounding(Element.E2M1, 16),
    ):
        assert not has_pieces(replace(matrix, inputs=inputs), CodeKind.LOOKED)
    uneven = InputRounding(rule=Rounding(element=Element.INT, bits=8, is_symmetric=False))
    assert not has_pieces(replace(WITH_INPUTS["w4a8"], inputs=uneven), CodeKind.FOURS)


def test_a_table_of_other_numbers_is_not_kept() -> None:
    matrix = make_matrix(32, wide=True)
    assert matrix.table is not None
    assert code_kind(replace(matrix, table=matrix.table / 2)) is None
