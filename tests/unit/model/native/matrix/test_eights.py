"""Products with codes of 8 bits: the bits of the same matrix in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import COLUMNS, INNER, NUM_ROWS, multiply

#: Every number of E4M3.
_FLOATS = torch.tensor([n for n in range(256) if n % 128 != 127], dtype=torch.uint8)


def make_matrix(
    *, group: int, floats: bool = False, zeros: bool = False, dtype: torch.dtype = torch.float32
) -> QuantizedMatrix:
    """A random matrix [COLUMNS, INNER]."""
    draw = torch.Generator().manual_seed(group)
    shape = COLUMNS, -(-INNER // group)
    codes = torch.randint(-128, 128, (COLUMNS, INNER), generator=draw).to(torch.int8)
    if floats:
        picked = torch.randint(0, len(_FLOATS), (COLUMNS, INNER), generator=draw)
        codes = _FLOATS[picked].view(torch.float8_e4m3fn)
    own = torch.randint(-128, 128, shape, generator=draw).to(torch.int8)
    return QuantizedMatrix(
        codes=codes,
        bits=8,
        scales=(torch.rand(shape, generator=draw) * 0.01 + 0.001).to(dtype),
        zeros=own if zeros else None,
        group=group,
    )


@pytest.mark.parametrize(
    "matrix",
    [
        make_matrix(group=INNER),
        make_matrix(group=32, dtype=torch.float16),
        make_matrix(group=4, dtype=torch.bfloat16, zeros=True),
        replace(
            make_matrix(group=8, dtype=torch.float16), offsets=torch.rand(COLUMNS, INNER // 8) * 0.5
        ),
        make_matrix(group=INNER, floats=True),
        make_matrix(group=64, floats=True, dtype=torch.bfloat16),
        make_matrix(group=16, floats=True),
    ],
    ids=["rows", "groups", "zeros", "offsets", "floats-rows", "floats-blocks", "floats-groups"],
)
def test_a_product_has_the_bits_of_the_dense_one(matrix: QuantizedMatrix) -> None:
    linear = FusedLinear(in_size=INNER, out_sizes=(COLUMNS,), bias=True, dtype=torch.float32)
    assert linear.bias is not None
    linear.bias.copy_(torch.arange(COLUMNS) / 7)
    packing = Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32)
    assert packing.keeps(matrix)
    kept, size = packing.keep(matrix, linear), packing.num_bytes
    dense = packing._matrix(matrix.dense(torch.float32), linear.bias)
    assert size < 0.6 * (packing.num_bytes - size)
    for count in NUM_ROWS:
        rows = torch.randn(count, INNER, generator=torch.Generator().manual_seed(count))
        own, expected = multiply(packing, kept.matrix, rows), multiply(packing, dense, rows)
        assert torch.equal(own, expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [Kind.FLOAT32, Kind.BFLOAT16])
def test_groups_may_be_in_any_order(bits: int, kind: Kind) -> None:
    """The rows are put in the order of the groups: only the order of sums differs."""
    draw = torch.Generator().manual_seed(bits)
    matrix = make_matrix(group=8, zeros=bits == 8, dtype=torch.float16)
    groups = torch.arange(INNER)[torch.randperm(INNER, generator=draw)] // 8
    matrix = replace(
        matrix,
        codes=matrix.codes % 16 if bits == 4 else matrix.codes,
        bits=bits,
        column_groups=groups,
    )
    linear = FusedLinear(in_size=INNER, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    packing = Packing(LibraryThreads(ThreadPlan(2)), kind)
    assert packing.keeps(matrix)
    kept = packing.keep(matrix, linear)
    rows = torch.randn(200, INNER, generator=draw)
    together = multiply(packing, kept.matrix, rows)
    expected = rows.double() @ matrix.dense(torch.float32).double().T
    torch.testing.assert_close(together.double(), expected, rtol=1e-4, atol=1e-4)
    for count in NUM_ROWS:
        assert torch.equal(multiply(packing, kept.matrix, rows[:count]), together[:count])
    uneven = replace(matrix, column_groups=torch.where(groups == 1, 0, groups))
    assert not packing.keeps(uneven)


def test_scales_whose_products_are_no_numbers_are_not_kept() -> None:
    packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)
    matrix = make_matrix(group=32, floats=True)
    assert packing.keeps(matrix)
    matrix.scales[3] = 200.0
    assert not packing.keeps(matrix)
