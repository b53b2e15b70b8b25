"""Products with rounded inputs: those numbers that PyTorch's executor multiplies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.linear.rounded import RoundedProduct
from shared.model.matrix.inputs import InputRounding
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element, Rounding, ScaleRule
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import COLUMNS, INNER, NUM_ROWS, multiply

_FLOATS = (Element.E2M1, Element.E2M3, Element.E3M2, Element.E4M3, Element.E5M2)
INT8: dict[str, Any] = {"element": Element.INT, "bits": 8}
FLOAT8: dict[str, Any] = {"element": Element.E4M3, "bits": 8}
RULES: dict[str, Rounding] = {
    "int8": Rounding(**INT8),
    "int8 uneven": Rounding(**INT8, is_symmetric=False),
    "int8 static": Rounding(**INT8, is_static=True),
    "int8 static uneven": Rounding(**INT8, is_static=True, is_symmetric=False),
    "int8 groups": Rounding(**INT8, group=32, is_symmetric=False),
    "int4": Rounding(element=Element.INT, bits=4),
    "fp8": Rounding(**FLOAT8),
    "fp8 bound": Rounding(**FLOAT8, bound=1.5),
    "fp8 static": Rounding(**FLOAT8, is_static=True),
    "fp8 blocks": Rounding(**FLOAT8, group=128),
    "fp8 powers": Rounding(**FLOAT8, group=128, scale=ScaleRule.POWER_ABOVE),
    "nvfp4": Rounding(element=Element.E2M1, bits=4, group=16, scale=ScaleRule.E4M3),
    "nvfp4-times": Rounding(element=Element.E2M1, bits=4, group=16, scale=ScaleRule.E4M3_TIMES),
    "odd groups": Rounding(**FLOAT8, group=13),
    **{
        f"mx {each.value} {even}": Rounding(
            element=each, bits=8, group=32, scale=ScaleRule.POWER, even_bits=even
        )
        for each in _FLOATS
        for even in (None, 1, 3)
    },
}


def inputs_of(rule: Rounding) -> InputRounding:
    if rule.scale is ScaleRule.E4M3:
        return InputRounding(rule, torch.tensor(448.0 * 6 / 5))
    if rule.scale is ScaleRule.E4M3_TIMES:
        return InputRounding(rule, torch.tensor(5 / (448.0 * 6)))
    if not rule.is_static:
        return InputRounding(rule)
    zero = None if rule.is_symmetric else torch.tensor(7.0)
    return InputRounding(rule, torch.tensor(0.03), zero)


def rows_of(count: int, size: int) -> torch.Tensor:
    """Rows of all magnitudes; some are zeros, or have no number above or below 0."""
    draw = torch.Generator().manual_seed(count)
    rows = torch.randn(count, size, generator=draw)
    rows *= 10.0 ** torch.linspace(-6, 3, count).unsqueeze(1)
    rows[::7] = rows[::7].abs()
    rows[3::7] = -rows[3::7].abs()
    rows[5::11] = 0.0
    rows[1::5, ::2] = 0.0
    return rows


def ties_of(rule: Rounding, size: int) -> torch.Tensor:
    """Numbers in the middle of two of the grid, with the largest one in front of each group."""
    is_integer = rule.element is Element.INT
    most = (2**rule.bits - 1) / 2 if is_integer else rule.element.largest
    numbers = torch.arange(size) / 16 % most
    numbers[:: rule.group or size] = most
    return numbers


def product(packing: Packing, matrix: QuantizedMatrix, *, bias: bool = False) -> int:
    columns, inner = matrix.shape
    linear = FusedLinear(in_size=inner, out_sizes=(columns,), bias=bias, dtype=torch.float32)
    if linear.bias is not None:
        linear.bias.copy_(torch.arange(columns) / 7)
    assert packing.keeps(matrix)
    return packing.keep(matrix, linear).matrix


@pytest.fixture(scope="module")
def packing() -> Packing:
    return Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rule", RULES)
def test_numbers_are_rounded_to_those_of_pytorch(rule: str, bits: int, packing: Packing) -> None:
    """The weight is the unit matrix, of codes or of integers that are multiplied as such."""
    inputs, size = inputs_of(RULES[rule]), INNER
    codes = torch.eye(size, dtype=torch.int8)
    unit = QuantizedMatrix(
        codes=codes, bits=bits, scales=torch.ones(size, 1), group=size, inputs=inputs
    )
    rows = rows_of(200, size)
    ties = ties_of(RULES[rule], size)
    rows[-1] = ties
    # With a scale whose inverse is rounded, quotients are a little beside the middle.
    rows[:40] = ties * torch.linspace(0.1, 1.7, 40).unsqueeze(1)
    assert torch.equal(multiply(packing, product(packing, unit), rows, size), inputs.apply(rows))


def random_matrix(inputs: InputRounding, kind: str) -> QuantizedMatrix:
    draw = torch.Generator().manual_seed(1)
    shape, group = (COLUMNS, INNER), {"int8": INNER, "order": 16}.get(kind, 32)
    codes = torch.randint(-8, 8, shape, generator=draw).to(torch.int8)
    if kind == "int8":
        codes = torch.randint(-128, 128, shape, generator=draw).to(torch.int8)
    elif kind in ("fp8", "e5m2"):
        dtype = torch.float8_e4m3fn if kind == "fp8" else torch.float8_e5m2
        codes = torch.randn(shape, generator=draw).to(dtype)
    num_groups = -(-INNER // group)
    return QuantizedMatrix(
        codes=codes,
        bits=4 if kind in ("int4", "order") else 8,
        scales=torch.rand(COLUMNS, num_groups, generator=draw) * 0.01 + 0.001,
        group=group,
        column_groups=torch.arange(INNER) % num_groups if kind == "order" else None,
        inputs=inputs,
    )


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8", "e5m2", "order"])
@pytest.mark.parametrize("rule", ["int8", "int8 uneven", "int8 static uneven", "fp8 blocks"])
def test_products_are_those_of_pytorch(kind: str, rule: str, packing: Packing) -> None:
    """Up to the order of sums; integers are exact. Any company leaves the bits."""
    matrix = random_matrix(inputs_of(RULES[rule]), kind)
    assert matrix.inputs is not None
    own = product(packing, matrix, bias=True)
    rows = rows_of(200, INNER)
    together = multiply(packing, own, rows)
    for count in NUM_ROWS:
        assert torch.equal(multiply(packing, own, rows[:count].contiguous()), together[:count])
    exact = matrix.inputs.apply(rows).double() @ matrix.dense(torch.float32).double().T
    exact += torch.arange(COLUMNS) / 7
    theirs = RoundedProduct(matrix, matrix.inputs)(rows) + torch.arange(COLUMNS) / 7
    error, limit = ((each.double() - exact).abs().amax(1) for each in (together, theirs))
    assert (error <= 4 * limit + 1e-6 * exact.abs().amax(1)).all()
