"""Scales and offsets of groups that are factors of numbers in float16, as those of K-quants."""

from __future__ import annotations

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.native.packing.matrices import PackedWeight
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import multiply

COLUMNS, INNER, SHARING = 72, 768, 256


def factors(group: int, least: int, most: int, seed: int) -> torch.Tensor:
    """[COLUMNS, groups]: integers times numbers in float16, some of which are 0 or subnormal."""
    draw = torch.Generator().manual_seed(seed)
    each = torch.randint(least, most + 1, (COLUMNS, INNER // group), generator=draw)
    shared = torch.rand(COLUMNS, INNER // SHARING, generator=draw).half() * 0.01
    shared[3, 0], shared[5, 1] = 0.0, 2e-7
    each[7, :4] = 0
    return each * shared.float().repeat_interleave(SHARING // group, dim=1)


def make_matrix(bits: int, group: int, *, has_offsets: bool) -> QuantizedMatrix:
    draw = torch.Generator().manual_seed(bits)
    low, high = (0, 2**bits) if has_offsets else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return QuantizedMatrix(
        codes=torch.randint(low, high, (COLUMNS, INNER), generator=draw).to(torch.int8),
        bits=bits,
        scales=factors(group, -128, 127, 1) if not has_offsets else factors(group, 0, 63, 1),
        offsets=factors(group, 0, 63, 2) if has_offsets else None,
        group=group,
    )


MATRICES = {
    "q4_k": make_matrix(4, 32, has_offsets=True),
    "q5_k": make_matrix(5, 32, has_offsets=True),
    "q6_k": make_matrix(6, 16, has_offsets=False),
}


def kept(matrix: QuantizedMatrix) -> tuple[Packing, int, int]:
    """Where and as what it is kept, and its bytes."""
    packing = Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32)
    linear = FusedLinear(in_size=INNER, out_sizes=(COLUMNS,), bias=False, dtype=torch.float32)
    weight = packing.keep(matrix, linear)
    assert isinstance(weight, PackedWeight)
    return packing, weight.matrix, packing.num_bytes


@pytest.mark.parametrize("name", MATRICES)
def test_factors_of_shared_numbers_take_a_byte_and_lose_nothing(name: str) -> None:
    matrix = MATRICES[name]
    packing, own, size = kept(matrix)
    dense = packing._matrix(matrix.dense(torch.float32), None)
    rows = torch.randn(5, INNER, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        multiply(packing, own, rows), multiply(packing, dense, rows), rtol=1e-5, atol=1e-5
    )
    # One number that is no factor, and all of its kind are float32.
    other = make_matrix(matrix.bits, matrix.group, has_offsets=matrix.offsets is not None)
    other.scales[11, 1] = 0.1234567
    num_scales = (-COLUMNS // 32 * -32) * INNER // matrix.group
    saved = num_scales * (4 - 1) - num_scales * matrix.group // SHARING * 4
    assert kept(other)[2] - size == saved
