"""Products of matrices in 8 bits, with scales per token and per output channel, or per group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.limits import LARGEST
from kernels.quantized_matmul import reference
from kernels.quantized_matmul.groups import common_group

if TYPE_CHECKING:
    from torch import Tensor


def quantized_matmul(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    x_group: int | None = None,
    weight_group: int | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    implementation: str = "torch",
) -> Tensor:
    """Return (x * x_scales[:, None]) @ (weight * weight_scales[:, None]).T, in `out_dtype`.

    x: [num_tokens, in_features] and weight: [out_features, in_features], both int8 or both
    float8_e4m3fn, as `quantize_rows` returns them; x_scales: float32 [num_tokens]; weight_scales:
    float32 [out_features]. With a group, so many features share a scale, the last ones perhaps
    fewer, and scales have a second dimension: the groups. Groups are multiples of 32.

    Returns [num_tokens, out_features]. Sums of int8 are exact within a group (up to 2**31, hence
    133,000 features). Sums of float8 are in float32; Hopper's tensor cores add with about 14 bits,
    so their sums are added in full float32 every 128 features. With `triton`, a product that
    `scaled_mm.is_better` is PyTorch's.

    Raises:
        ValueError: shapes or types that do not fit together, or an unknown implementation.
    """
    _check(x, x_scales, weight, weight_scales, x_group, weight_group)
    if implementation == "torch":
        multiply = reference.quantized_matmul
    elif implementation == "triton":
        from kernels.quantized_matmul.kernel import launch as multiply  # noqa: PLC0415 optional
    else:
        raise ValueError(f"quantized_matmul has no implementation {implementation!r}")
    return multiply(
        x,
        x_scales,
        weight,
        weight_scales,
        x_group=x_group,
        weight_group=weight_group,
        out_dtype=out_dtype,
    )


def _check(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    x_group: int | None,
    weight_group: int | None,
) -> None:
    if x.dtype != weight.dtype or x.dtype not in LARGEST:
        raise ValueError(f"x of {x.dtype} and weight of {weight.dtype} are not of one 8-bit type")
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x {tuple(x.shape)} does not fit weight {tuple(weight.shape)}")
    if x_scales.shape != _scales_shape(x, x_group) or weight_scales.shape != _scales_shape(
        weight, weight_group
    ):
        raise ValueError(
            f"scales {tuple(x_scales.shape)} and {tuple(weight_scales.shape)} do not fit "
            f"x {tuple(x.shape)} and weight {tuple(weight.shape)} in groups of {x_group} and "
            f"{weight_group}"
        )
    common_group(x_group, weight_group)


def _scales_shape(codes: Tensor, group: int | None) -> tuple[int, ...]:
    rows, features = codes.shape
    return (rows,) if group is None else (rows, -(-features // group))
