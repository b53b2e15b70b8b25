"""Products with codes as checkpoints store them: PyTorch here, Triton in its interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul.packing import pack_codes
from kernels.weight_only_matmul.weight import unpack
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.stored_matmul import FORMS, checks, make

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.stored_matmul")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_computes_the_product(name: str) -> None:
    CHECKS[name]()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", checks("triton"))
def test_triton_computes_the_product(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


@pytest.mark.parametrize(
    ("name", "bits"),
    [("int4", 4.25), ("mxfp4", 4.25), ("int4-32", 4.5), ("int4-32-zeros", 4.75), ("mxfp8", 8.25)],
)
def test_bits_of_a_number(name: str, bits: float) -> None:
    packed, _ = make(FORMS[name], 16, 256)
    assert packed.num_bytes * 8 / (16 * 256) == bits


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (0.5, torch.uint8),
        (-2.0, torch.bfloat16),
        (1.5, torch.bfloat16),
        (2.0**-130, torch.bfloat16),
        (1.0009765625, torch.float32),
    ],
)
def test_scales_take_the_least_bits_that_hold_them(scale: float, dtype: torch.dtype) -> None:
    codes = torch.ones(1, 64, dtype=torch.int8)
    packed = pack_codes(codes, torch.tensor([[1.0, scale]]), bits=4, group=32)
    assert packed.scales.dtype == dtype
    assert unpack(packed)[0, 32:].tolist() == [scale] * 32


def test_groups_that_cut_a_piece_are_refused() -> None:
    x, scales = torch.ones(2, 64, dtype=torch.int8), torch.ones(2, 4)
    with pytest.raises(ValueError, match="not whole pieces of 32"):
        quantized_matmul(x, scales, x, scales, x_group=16, weight_group=16)
    with pytest.raises(ValueError, match="do not fit"):
        quantized_matmul(x, scales, x, scales, x_group=32, weight_group=32)
