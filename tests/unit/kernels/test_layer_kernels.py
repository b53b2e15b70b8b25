"""Norms, rotation with KV write and gate: PyTorch here, Triton in an interpreter of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.low_rank import LowRankSlots, RowSegments, Segment, add_low_rank
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.silu_mul import silu_mul
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.layer_kernels import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.layer_kernels")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_computes_the_formula(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", CHECKS)
def test_triton_computes_the_formula(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.ones(2, 4), torch.ones(4)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        rms_norm(x, weight, eps=1e-5, implementation="cuda")
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        add_rms_norm(x, x, weight, eps=1e-5, implementation="cuda")
    with pytest.raises(ValueError, match="differ"):
        add_rms_norm(x, x[:1], weight, eps=1e-5)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        silu_mul(x, x, implementation="cuda")
    with pytest.raises(ValueError, match="differ"):
        silu_mul(x, x[:, :2])


def test_products_of_low_rank_refuse_what_does_not_fit() -> None:
    x, rows = torch.ones(2, 4), RowSegments((Segment(0, 2, 0),))
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        add_low_rank(x, x, LowRankSlots(4, 4), rows, implementation="cuda")
    with pytest.raises(ValueError, match="do not fit slots of 3 to 4 numbers"):
        add_low_rank(x, x, LowRankSlots(3, 4), rows)
    with pytest.raises(ValueError, match="segments of 3 rows, of which there are 2"):
        add_low_rank(x, x, LowRankSlots(4, 4), RowSegments((Segment(0, 3, 0),)))


def test_the_rotation_refuses_what_does_not_fit() -> None:
    cache, slots = torch.zeros(2, 1, 2, 2, 8, 16), torch.tensor([3, 4])
    q, k, angles = torch.ones(2, 4, 16), torch.ones(2, 2, 16), torch.ones(2, 16)
    with pytest.raises(ValueError, match=r"must be \(2, 2, 16\)"):
        rope_kv_write(q, k, k[:1], angles, cache, 0, slots)
    with pytest.raises(ValueError, match="do not fit k"):
        rope_kv_write(q, k, k, angles[:1], cache, 0, slots)
    with pytest.raises(ValueError, match="do not fit k"):
        rope_kv_write(q[..., :8], k, k, angles, cache, 0, slots)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        rope_kv_write(q, k, k, angles, cache, 0, slots, implementation="cuda")
