"""A matrix whose codes have offsets: rows of it are taken, cut and joined as those of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shared.model.linear.quantized import QuantizedMatrix, concatenate
from shared.model.linear.stored import AsStored

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


def test_offsets_are_joined_with_none() -> None:
    one, other = make_matrix(), make_matrix(dtype=torch.float16, seed=1)
    for parts in ([one, other], [one, replace(other, offsets=None)]):
        joined = concatenate(parts)
        assert joined is not None
        dense = torch.cat([part.dense(torch.float32) for part in parts])
        assert torch.equal(joined.dense(torch.float32), dense)


def test_offsets_are_not_joined_with_zeros() -> None:
    one = make_matrix()
    zeros = torch.ones(one.scales.shape, dtype=torch.int8)
    assert concatenate([one, replace(one, offsets=None, zeros=zeros)]) is None


def test_offsets_take_memory() -> None:
    matrix = make_matrix()
    assert matrix.offsets is not None
    assert matrix.num_bytes - replace(matrix, offsets=None).num_bytes == matrix.offsets.nbytes


def test_a_method_that_knows_no_offsets_does_not_keep_them() -> None:
    method = AsStored(torch.device("cpu"), implementation="triton")
    matrix = make_matrix(group=128)
    assert not method.keeps(matrix)
    assert method.keeps(replace(matrix, offsets=None))
