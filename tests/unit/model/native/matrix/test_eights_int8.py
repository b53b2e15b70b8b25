"""Codes of 8 bits, or 6, times rows of 8 bits: exact sums by piece or half a piece."""

from __future__ import annotations

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import NUM_ROWS, multiply
from tests.unit.model.native.matrix.test_fours_int8 import rounded

COLUMNS = 72


def make_matrix(inner: int, group: int, extra: str = "", bits: int = 8) -> QuantizedMatrix:
    draw = torch.Generator().manual_seed(group)
    bound = 1 << (bits - 1)
    codes = torch.randint(-bound, bound, (COLUMNS, inner), generator=draw).to(torch.int8)
    shape = COLUMNS, -(-inner // group)
    zeros = torch.randint(-128, 128, shape, generator=draw).to(torch.int8)
    return QuantizedMatrix(
        codes=codes,
        bits=bits,
        scales=(torch.rand(shape, generator=draw) * 0.01 + 0.001).half(),
        zeros=zeros if extra == "zeros" else None,
        offsets=torch.rand(shape, generator=draw).half() if extra == "offsets" else None,
        group=group,
    )


MATRICES = {
    "pieces": make_matrix(136, 32),
    "rows": make_matrix(136, 136),
    "zeros": make_matrix(136, 64, "zeros"),
    "offsets": make_matrix(136, 32, "offsets"),
    "halves": make_matrix(160, 16),
    "halves-zeros": make_matrix(160, 16, "zeros"),
    "halves-offsets": make_matrix(160, 16, "offsets"),
    "short": make_matrix(20, 20),
    "six": make_matrix(136, 32, bits=6),
    "six-rows": make_matrix(136, 136, bits=6),
    "six-offsets": make_matrix(136, 32, "offsets", bits=6),
    "six-halves": make_matrix(160, 16, bits=6),
    "six-halves-offsets": make_matrix(160, 16, "offsets", bits=6),
    "six-short": make_matrix(20, 20, bits=6),
    "five": make_matrix(160, 32, bits=5),
    "seven": make_matrix(160, 32, bits=7),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_product_is_that_of_rounded_rows_whatever_is_beside_them(name: str) -> None:
    matrix = MATRICES[name]
    inner = matrix.shape[1]
    linear = FusedLinear(in_size=inner, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    packing = Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32, rounds_inputs=True)
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(max(NUM_ROWS), inner, generator=draw)
    # Where all numbers and codes are large and of one sign, sums are at their bounds.
    rows[1], matrix.codes[0] = -1.0, -(1 << (matrix.bits - 1))
    expected = (rounded(rows) @ matrix.dense(torch.float32).double().T).float()
    kept = packing.keep(matrix, linear)
    whole = multiply(packing, kept.matrix, rows)
    torch.testing.assert_close(whole, expected, rtol=3e-6, atol=3e-6)
    for count in NUM_ROWS:
        assert torch.equal(multiply(packing, kept.matrix, rows[:count].contiguous()), whole[:count])


@pytest.mark.parametrize(("bits", "stored"), [(5, 6), (6, 6), (7, 8)])
def test_codes_of_few_bits_take_six(bits: int, stored: int) -> None:
    inner, columns = 160, 96
    matrix = make_matrix(inner, 32, bits=bits)
    linear = FusedLinear(in_size=inner, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32, rounds_inputs=True)
    packing.keep(matrix, linear)
    scales, bias = 2 * columns * inner // 32, 4 * columns
    assert packing.num_bytes == columns * inner * stored // 8 + scales + bias


def test_groups_that_cut_pieces_take_rows_as_they_are() -> None:
    matrix = make_matrix(144, 16)  # the last piece has one group
    rows = torch.randn(5, 144, generator=torch.Generator().manual_seed(3))
    linear = FusedLinear(in_size=144, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    results = []
    for rounds in (True, False):
        packing = Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32, rounds_inputs=rounds)
        results.append(multiply(packing, packing.keep(matrix, linear).matrix, rows))
    assert torch.equal(*results)
