"""Norm, rotary embedding and gate against their formulas in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import rms_norm
from kernels.rotary import rotate
from kernels.silu_mul import silu_mul


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 7), (5, 96), (3, 6, 80)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(shape[-1], seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-5), expected.float())


def test_rms_norm_rounds_before_the_weight_multiplies() -> None:
    x, weight = random(4, 96).bfloat16(), random(96, seed=1).bfloat16()
    normed = rms_norm(x.float(), torch.ones(96), eps=1e-6).bfloat16()
    assert torch.equal(rms_norm(x, weight, eps=1e-6), weight * normed)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    x, angles = random(3, 2, 8), random(3, 4, seed=1)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    as_complex = torch.complex(x[..., :4].double(), x[..., 4:].double())
    turned = as_complex * torch.polar(torch.ones(3, 1, 4).double(), angles[:, None].double())
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(rotate(x, cos_sin), expected)


def test_gate() -> None:
    gate, up = random(5, 9), random(5, 9, seed=1)
    expected = (gate.double() * gate.double().sigmoid() * up.double()).float()
    torch.testing.assert_close(silu_mul(gate, up), expected)
