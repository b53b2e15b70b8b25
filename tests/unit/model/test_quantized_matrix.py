"""A matrix whose codes have offsets: rows of it are taken, cut and joined as those of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.linear.fused import FusedLinear
from shared.model.linear.stored import AsStored
from shared.model.matrix.quantized import QuantizedMatrix, concatenate
from shared.model.matrix.uniting import unite
from shared.model.native.packing.matrices import PackedWeight
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import multiply

ROWS, COLUMNS = 12, 80
FLOATS = (torch.float32, torch.float16)


def make_matrix(
    *, group: int = 32, row_range: int = 1, dtype: torch.dtype = torch.float32, seed: int = 0
) -> QuantizedMatrix:
    """A random matrix of 4 bits with offsets."""
    draw = torch.Generator().manual_seed(seed)
    shape = -(-ROWS // row_range), -(-COLUMNS // group)
    return QuantizedMatrix(
        codes=torch.randint(0, 16, (ROWS, COLUMNS), generator=draw).to(torch.int8),
        bits=4,
        scales=torch.rand(shape, generator=draw).to(dtype),
        offsets=torch.randn(shape, generator=draw).to(dtype),
        row_range=row_range,
        group=group,
    )


def expected(matrix: QuantizedMatrix) -> torch.Tensor:
    """The weight, by number."""
    assert matrix.offsets is not None
    rows, columns = torch.arange(ROWS) // matrix.row_range, torch.arange(COLUMNS) // matrix.group
    scales, offsets = (each.float()[rows][:, columns] for each in (matrix.scales, matrix.offsets))
    return matrix.codes.float() * scales - offsets


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("row_range", [1, 5, ROWS])
@pytest.mark.parametrize("group", [16, 32, COLUMNS])
def test_offsets_are_taken_off(group: int, row_range: int, dtype: torch.dtype) -> None:
    matrix = make_matrix(group=group, row_range=row_range, dtype=dtype)
    dense = expected(matrix)
    assert torch.equal(matrix.dense(torch.float32), dense)
    assert torch.equal(matrix.by_rows().dense(torch.float32), dense)
    assert torch.equal(matrix.to(torch.device("cpu")).dense(torch.float32), dense)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    assert torch.equal(matrix.take(order).dense(torch.float32), dense[order])
    halves = [half.dense(torch.float32) for half in matrix.split(2)]
    assert torch.equal(torch.cat(halves), dense)


def test_offsets_are_joined() -> None:
    parts = make_matrix(), make_matrix(dtype=torch.float16, seed=1)
    joined = concatenate(parts)
    assert joined is not None
    dense = torch.cat([part.dense(torch.float32) for part in parts])
    assert torch.equal(joined.dense(torch.float32), dense)
    # Codes of the other may have a sign: both do not fit 4 bits.
    assert concatenate([parts[0], replace(parts[1], offsets=None)]) is None


def signed(bits: int, group: int) -> QuantizedMatrix:
    draw = torch.Generator().manual_seed(bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    return QuantizedMatrix(
        codes=torch.randint(low, high, (ROWS, COLUMNS), generator=draw).to(torch.int8),
        bits=bits,
        scales=torch.rand(ROWS, -(-COLUMNS // group), generator=draw),
        group=group,
    )


PLAIN, WHOLE = signed(4, 16), signed(8, COLUMNS)
MIXES = [
    (PLAIN, WHOLE),
    (make_matrix(group=16), signed(6, 16), WHOLE),
    (make_matrix(group=40), PLAIN),
]


@pytest.mark.parametrize("parts", MIXES)
def test_matrices_of_several_types_are_one_without_a_loss(
    parts: tuple[QuantizedMatrix, ...],
) -> None:
    whole = unite(parts)
    assert whole is not None
    dense = torch.cat([part.dense(torch.float32) for part in parts])
    assert torch.equal(whole.dense(torch.float32), dense)


def test_what_has_no_common_form_is_not_united() -> None:
    zeros = torch.ones(PLAIN.scales.shape, dtype=torch.int8)
    assert unite([make_matrix(group=16), replace(PLAIN, zeros=zeros)]) is None
    assert unite([PLAIN, signed(4, 32)]) is not None  # 80 columns: the last group is shorter
    assert unite([PLAIN, replace(WHOLE, codes=WHOLE.codes.float().to(torch.float8_e4m3fn))]) is None


def test_projections_of_several_types_stay_codes_natively() -> None:
    """As the values of llama.cpp's Q4_K_M beside its queries and keys."""
    linear = FusedLinear(
        in_size=COLUMNS,
        out_sizes=(ROWS, ROWS, ROWS),
        bias=False,
        dtype=torch.float32,
        method=(packing := Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)),
    )
    parts = MIXES[1]
    for index, part in enumerate(parts):
        linear.take(index, part)
    assert isinstance(linear.product, PackedWeight)
    rows = torch.randn(3, COLUMNS, generator=torch.Generator().manual_seed(0))
    dense = torch.cat([part.dense(torch.float32) for part in parts])
    own = multiply(packing, linear.product.matrix, rows, 3 * ROWS)
    torch.testing.assert_close(own, rows @ dense.T, rtol=1e-5, atol=1e-4)
    assert packing.num_bytes < 0.75 * dense.nbytes


def test_offsets_are_not_joined_with_zeros() -> None:
    one = make_matrix()
    zeros = torch.ones(one.scales.shape, dtype=torch.int8)
    assert concatenate([one, replace(one, offsets=None, zeros=zeros)]) is None


def test_offsets_take_memory() -> None:
    matrix = make_matrix()
    assert matrix.offsets is not None
    assert matrix.num_bytes - replace(matrix, offsets=None).num_bytes == matrix.offsets.nbytes


def test_triton_keeps_groups_of_any_columns_in_another_order() -> None:
    method = AsStored(torch.device("cpu"), implementation="triton")
    groups = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(2)) // 16
    matrix = replace(make_matrix(group=16), column_groups=groups)
    assert method.keeps(matrix)
    assert not method.keeps(replace(matrix, column_groups=groups.clamp(min=1)))
    linear = FusedLinear(in_size=COLUMNS, out_sizes=(ROWS,), bias=False, dtype=torch.float32)
    product = method.keep(matrix, linear)
    rows = torch.randn(70, COLUMNS, generator=torch.Generator().manual_seed(0))  # PyTorch's part
    own = rows @ matrix.dense(torch.float32).T
    torch.testing.assert_close(product(rows), own, rtol=1e-5, atol=1e-4)
