"""Products in 8 bits and with packed weights: PyTorch here, Triton in its interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.packing import pack_8_bits, pack_int4
from kernels.weight_only_matmul.weight import unpack
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.kernels.tensors import random
from tests.suites.kernels.quantized_matmul import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.quantized_matmul")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_computes_the_product(name: str) -> None:
    CHECKS[name]()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CHECKS)
def test_triton_computes_the_product(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


@pytest.mark.parametrize("symmetric", [True, False])
def test_packing_in_4_bits_rounds_to_the_nearest(symmetric: bool) -> None:
    weight = random(9, 300) + (0.0 if symmetric else 0.7)
    weight[3] = 0.0
    packed = pack_int4(weight, symmetric=symmetric)
    padded = torch.nn.functional.pad(weight, (0, 84)).view(9, 3, 128)
    if symmetric:
        step = padded.abs().amax(-1) / 7
    else:
        step = (padded.amax(-1).clamp(min=0) - padded.amin(-1).clamp(max=0)) / 15
    # The zero point is rounded as well, and scales are a little larger than they could be.
    allowed = step * (0.51 if symmetric else 1.01)
    error = (unpack(packed) - weight).abs()
    assert (error <= allowed.repeat_interleave(128, dim=1)[:, :300]).all()
    assert packed.num_bytes == 9 * 3 * (64 + (2 if symmetric else 3))


def test_numbers_that_4_bits_have_are_kept() -> None:
    weight = (torch.arange(256) % 15 - 7).float().view(1, 256).repeat(4, 1) * 0.5
    assert torch.equal(unpack(pack_int4(weight)), weight)
    shifted = (torch.arange(256) % 16 - 3).float().view(1, 256) * 0.25
    assert torch.equal(unpack(pack_int4(shifted, symmetric=False)), shifted)


def test_what_does_not_fit_is_refused() -> None:
    x, scales = torch.ones(2, 8).to(torch.int8), torch.ones(2)
    with pytest.raises(ValueError, match="not of one 8-bit type"):
        quantized_matmul(x, scales, x.to(torch.float8_e4m3fn), scales)
    with pytest.raises(ValueError, match="does not fit weight"):
        quantized_matmul(x, scales, x[:, :4], scales)
    with pytest.raises(ValueError, match="do not fit"):
        quantized_matmul(x, scales[:1], x, scales)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        quantized_matmul(x, scales, x, scales, implementation="cuda")
    weight = pack_8_bits(torch.ones(3, 8), torch.int8)
    with pytest.raises(ValueError, match="does not fit 8 input features"):
        weight_only_matmul(torch.ones(2, 9), weight)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        weight_only_matmul(torch.ones(2, 8), weight, implementation="cuda")
