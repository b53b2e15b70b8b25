"""Packed products against PyTorch's, at sizes around every tile and panel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native.kinds import Kind
from kernels.native.linear import PackedLinear

#: Rows around the register tile (14), four of them, a task (168), and the unit's tiles (16).
ROWS = (1, 2, 13, 14, 15, 16, 17, 29, 33, 56, 57, 168, 169, 400)

#: Those of decoders that write; test_products has the other.
KINDS = (Kind.FLOAT32, Kind.BFLOAT16, Kind.INT8)


def make(columns: int, inner: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(columns + inner + rows)
    weight = torch.randn(columns, inner, generator=generator)
    bias = torch.randn(columns, generator=generator)
    return weight, bias, torch.randn(rows, inner, generator=generator)


def check(columns: int, inner: int, rows: int, kind: Kind, num_threads: int = 2) -> None:
    weight, bias, x = make(columns, inner, rows)
    ours = PackedLinear(weight, bias, kind=kind, num_threads=num_threads)(x).double()
    if kind is Kind.BFLOAT16:
        weight, x = weight.bfloat16(), x.bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    if kind is Kind.INT8:  # both factors have a rounding error of half a step
        step = weight.abs().amax(1) / 127 + x.abs().amax(1, keepdim=True) / 127
        assert ((ours - exact).abs() <= step * inner**0.5 * 2.5).all()
    else:
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-5 * inner**0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_around_every_tile(rows: int, kind: Kind) -> None:
    check(70, 200, rows, kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(columns=st.integers(1, 130), inner=st.integers(1, 300), rows=st.integers(1, 40))
def test_any_size(kind: Kind, columns: int, inner: int, rows: int) -> None:
    check(columns, inner, rows, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind: Kind) -> None:
    """Of many rows a task takes several panels, in pieces; of few ones it takes one, whole."""
    weight, bias, x = make(700, 901, 400)
    linear = PackedLinear(weight, bias, kind=kind, num_threads=1)
    together = linear(x)
    for rows in (slice(0, 1), slice(5, 20), slice(40, 97), slice(399, 400)):
        assert torch.equal(linear(x[rows]), together[rows])


def test_bfloat16_rounds_to_even_and_keeps_infinity_and_nan() -> None:
    values = torch.tensor([[1.00390625, 1.01171875, float("inf"), float("nan"), -0.0, 1e-40]]).T
    linear = PackedLinear(torch.ones(1, 1), kind=Kind.BFLOAT16)
    expected = values.bfloat16().float()
    got = linear(values)
    # The instruction for this product takes denormal numbers as zero; a CPU without it does not.
    assert got[5] in (0.0, expected[5])
    torch.testing.assert_close(got[:5], expected[:5], rtol=0, atol=0, equal_nan=True)
