"""PyTorch's product of float8 matrices: when it is taken, and that it is ours."""

from __future__ import annotations

import pytest
import torch

from kernels.quantize_rows import quantize_rows
from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_matmul.scaled_mm import is_better, scaled_mm
from tests.fakes.kernels.tensors import random

FP8 = torch.float8_e4m3fn


def codes(rows: int, columns: int, stride: int | None = None) -> torch.Tensor:
    return torch.zeros(rows, stride or columns, dtype=FP8)[:, :columns]


def test_it_is_taken_for_many_tokens_in_bfloat16() -> None:
    for arch in (89, 90, 100):
        assert is_better(codes(64, 256), codes(48, 256), torch.bfloat16, arch=arch)
    assert is_better(codes(64, 256, 272), codes(48, 256), torch.bfloat16, arch=90)


@pytest.mark.parametrize(
    ("tokens", "out", "columns", "stride", "dtype", "arch"),
    [
        (64, 48, 256, 256, torch.bfloat16, 86),
        (63, 48, 256, 256, torch.bfloat16, 90),
        (64, 40, 256, 256, torch.bfloat16, 90),
        (64, 48, 248, 256, torch.bfloat16, 90),
        (64, 48, 256, 260, torch.bfloat16, 90),
        (64, 48, 256, 256, torch.float16, 90),
        (64, 48, 256, 256, torch.float32, 90),
    ],
)
def test_what_it_does_not_take(
    tokens: int, out: int, columns: int, stride: int, dtype: torch.dtype, arch: int
) -> None:
    assert not is_better(codes(tokens, columns, stride), codes(out, columns), dtype, arch=arch)


def test_other_codes_and_columns_that_are_not_contiguous() -> None:
    x, weight = codes(64, 256), codes(48, 256)
    integers = torch.zeros(64, 256, dtype=torch.int8), torch.zeros(48, 256, dtype=torch.int8)
    assert not is_better(*integers, torch.bfloat16, arch=90)
    assert not is_better(codes(256, 64).T, weight, torch.bfloat16, arch=90)
    assert not is_better(x, codes(256, 48).T, torch.bfloat16, arch=90)


def test_operands_are_as_pytorch_asks_for_on_a_gpu() -> None:
    """Its shape function checks the layout of a device that is not here."""
    x, weight = (part.to("meta") for part in (codes(64, 256, 272), codes(48, 256)))
    assert is_better(x, weight, torch.bfloat16, arch=90)
    scales = torch.empty(64, device="meta"), torch.empty(48, device="meta")
    out = scaled_mm(x, scales[0], weight, scales[1], torch.bfloat16)
    assert (out.shape, out.dtype) == ((64, 48), torch.bfloat16)
    with pytest.raises(RuntimeError, match="must be col_major"):
        torch._scaled_mm(
            x, weight.T.contiguous(), scale_a=torch.ones(64, 1), scale_b=torch.ones(1, 48)
        )


def test_it_computes_our_product() -> None:
    (x, x_scales), (weight, weight_scales) = (
        quantize_rows(random(rows, 320, seed=rows), FP8) for rows in (70, 48)
    )
    expected = quantized_matmul(x, x_scales, weight, weight_scales, out_dtype=torch.float32)
    ours = scaled_mm(x, x_scales, weight, weight_scales, torch.bfloat16)
    torch.testing.assert_close(ours.float(), expected, rtol=2**-7, atol=1e-3)
