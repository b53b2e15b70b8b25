"""Products with codes of 4 bits: the bits of the same matrix in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.native.packing.matrices import PackedWeight
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS, INNER = 72, 136
#: One row, a tile, the matrix unit's least, more than its tile, more than a tile, than a task.
NUM_ROWS = (1, 3, 4, 12, 17, 41, 200)


def make_matrix(
    *,
    group: int,
    bits: int = 4,
    signed: bool = True,
    zeros: str = "none",
    has_offsets: bool = False,
    dtype: torch.dtype,
) -> QuantizedMatrix:
    """A random matrix [COLUMNS, INNER]."""
    draw = torch.Generator().manual_seed(group + bits)
    least = -(1 << (bits - 1)) if signed else 0
    shape = COLUMNS, -(-INNER // group)
    codes = torch.randint(0, 1 << bits, (COLUMNS, INNER), generator=draw) + least
    some = torch.randint(0, 1 << bits, shape, generator=draw) + least
    by_zeros = {"none": None, "one": torch.full(shape, 8), "each": some}
    own = by_zeros[zeros]
    return QuantizedMatrix(
        codes=codes.to(torch.int8),
        bits=bits,
        scales=(torch.rand(shape, generator=draw) * 0.01 + 0.001).to(dtype),
        zeros=None if own is None else own.to(torch.int8),
        offsets=torch.rand(shape, generator=draw).to(dtype) * 0.01 if has_offsets else None,
        group=group,
    )


def multiply(packing: Packing, matrix: int, rows: Tensor, columns: int = COLUMNS) -> Tensor:
    library, pool = packing.threads.library, packing.threads.pool
    out = torch.empty(len(rows), columns)
    code = library.baton_matrix_multiply(pool, matrix, rows.data_ptr(), len(rows), out.data_ptr())
    assert code == 0
    return out


@pytest.mark.parametrize(
    "matrix",
    [
        make_matrix(group=32, dtype=torch.float16),
        make_matrix(group=64, dtype=torch.bfloat16, zeros="each"),
        make_matrix(group=128, dtype=torch.float32, signed=False, zeros="one"),
        make_matrix(group=INNER, dtype=torch.float16, bits=3),
        make_matrix(group=8, dtype=torch.float16, bits=2, signed=False, zeros="each"),
        make_matrix(group=32, dtype=torch.float16, signed=False, has_offsets=True),
    ],
    ids=["symmetric", "zeros", "one-zero", "whole-rows", "two-bits", "offsets"],
)
def test_a_product_has_the_bits_of_the_dense_one(matrix: QuantizedMatrix) -> None:
    linear = FusedLinear(in_size=INNER, out_sizes=(COLUMNS,), bias=True, dtype=torch.float32)
    assert linear.bias is not None
    linear.bias.copy_(torch.arange(COLUMNS) / 7)
    for num_threads in (1, 2):
        packing = Packing(LibraryThreads(ThreadPlan(num_threads)), Kind.FLOAT32)
        assert packing.keeps(matrix)
        kept = packing.keep(matrix, linear)
        dense = packing._matrix(matrix.dense(torch.float32), linear.bias)
        for count in NUM_ROWS:
            rows = torch.randn(count, INNER, generator=torch.Generator().manual_seed(count))
            own, expected = multiply(packing, kept.matrix, rows), multiply(packing, dense, rows)
            # With scales of 32 bits the zero's product is rounded.
            rtol = 1e-5 if matrix.scales.dtype == torch.float32 else 0.0
            torch.testing.assert_close(own, expected, rtol=rtol, atol=rtol)


def test_scales_take_two_bytes_where_that_loses_nothing() -> None:
    linear = FusedLinear(in_size=INNER, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    sizes = []
    for dtype in (torch.float16, torch.float32):
        packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)
        packing.keep(make_matrix(group=8, dtype=dtype), linear)
        sizes.append(packing.num_bytes)
    assert sizes[1] - sizes[0] == 96 * INNER // 8 * 2


def test_what_is_no_group_of_whole_words_stays_dense() -> None:
    packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)
    matrix = make_matrix(group=32, dtype=torch.float16)
    assert packing.keeps(matrix)
    assert not packing.keeps(make_matrix(group=12, dtype=torch.float16))
    assert not Packing(packing.threads, Kind.INT8).keeps(matrix)


@pytest.mark.parametrize("num_stored", [1, 2])
def test_projections_of_one_product_are_codes_if_all_are(num_stored: int) -> None:
    packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)
    matrices = [make_matrix(group=group, dtype=torch.float16) for group in (32, 32)]
    linear = FusedLinear(
        in_size=INNER, out_sizes=(COLUMNS,) * 2, bias=False, dtype=torch.float32, method=packing
    )
    for number, matrix in enumerate(matrices):
        if number < num_stored:
            linear.take(number, matrix)
        else:
            linear.part(number)[0].copy_(matrix.dense(torch.float32))
            linear.filled(number)
    size, rows = packing.num_bytes, torch.randn(5, INNER)
    dense = packing._matrix(torch.cat([m.dense(torch.float32) for m in matrices]), None)
    assert isinstance(linear.product, PackedWeight)
    results = [
        multiply(packing, matrix, rows, 2 * COLUMNS) for matrix in (linear.product.matrix, dense)
    ]
    assert torch.equal(*results)
    assert (size < (packing.num_bytes - size) / 4) == (num_stored == 2)
