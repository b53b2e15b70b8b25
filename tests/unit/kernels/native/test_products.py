"""Products of encoders against double precision; the matrix unit computes them if there is one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.model.encoders.operations import gated
from shared.model.encoders.products import NativeGate, NativeProduct
from shared.model.native.threads import LibraryThreads, ThreadPlan
from shared.model.spec.feed_forwards import Activation
from tests.fakes.kernels.matrix_unit import has_matrix_unit

#: Rows around a tile (16), two of them, and a task (192).
ROWS = (1, 15, 16, 17, 32, 33, 191, 192, 193, 400)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(rows: int, columns: int, inner: int, num_threads: int = 2) -> None:
    weight, x = numbers(columns, inner), numbers(rows, inner, seed=1)
    ours = NativeProduct(LibraryThreads(ThreadPlan(num_threads)), weight, None)(x).double()
    error = (ours - x.double() @ weight.double().T).abs()
    # Of the sum of the magnitudes: half of the last bit of float32 is 6e-8. A product of two parts
    # that is left out is 1e-6 of a few numbers. Without a matrix unit there are no parts, and sums
    # are made number by number.
    bound = 3e-7 if has_matrix_unit() else 1e-6
    assert (error <= bound * (x.abs().double() @ weight.abs().double().T)).all()


@pytest.mark.parametrize("rows", ROWS)
def test_rows_around_every_tile(rows: int) -> None:
    check(rows, 70, 5)
    check(rows, 33, 800)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 130), inner=st.integers(1, 300))
def test_any_size(rows: int, columns: int, inner: int) -> None:
    check(rows, columns, inner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    weight, bias, x = numbers(700, 901).to(dtype), numbers(700), numbers(400, 901, seed=1)
    one, two = (NativeProduct(LibraryThreads(ThreadPlan(num)), weight, bias) for num in (1, 2))
    together = one(x)
    assert torch.equal(two(x), together)
    for rows in (slice(0, 1), slice(5, 20), slice(40, 97), slice(399, 400)):
        assert torch.equal(one(x[rows]), together[rows])


def test_the_bias_is_added_once() -> None:
    weight, bias = numbers(70, 33), numbers(70)
    threads = LibraryThreads(ThreadPlan(1))
    x = numbers(3, 33, seed=1)
    plain = NativeProduct(threads, weight, None)(x)
    assert torch.equal(NativeProduct(threads, weight, bias)(x), plain + bias)


def test_what_is_no_number_stays_in_its_row() -> None:
    weight, x = numbers(40, 70), numbers(20, 70, seed=1)
    product = NativeProduct(LibraryThreads(ThreadPlan(1)), weight, None)
    expected = product(x)
    x[7, 3] = float("nan")
    got = product(x)
    assert got[7].isnan().all()
    assert torch.equal(got[:7], expected[:7])
    assert torch.equal(got[8:], expected[8:])


@pytest.mark.parametrize("kind", [each for each in Activation if each is not Activation.CLAMPED])
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (40, 1000), (2, 20000)])
def test_gates(kind: Activation, shape: tuple[int, int]) -> None:
    native = NativeGate(LibraryThreads(ThreadPlan(2)))
    both = 3 * numbers(shape[0], 2 * shape[1])
    gate, up = both.split(shape[1], -1)
    own = gated(kind, gate.double(), None)
    result = native(kind, gate.clone(), None)
    torch.testing.assert_close(result, own.float(), atol=1e-7, rtol=1e-6)
    result = native(kind, gate, up)  # one row is contiguous: in place
    torch.testing.assert_close(result, (own * up).float(), atol=1e-6, rtol=1e-6)


def test_memory() -> None:
    """6 bytes a number with a matrix unit, otherwise 4; a bias of float32, and whole panels."""
    product = NativeProduct(LibraryThreads(ThreadPlan(1)), numbers(96, 64), None)
    assert product.num_bytes - 4 * 96 in (4 * 96 * 64, 6 * 96 * 64)
