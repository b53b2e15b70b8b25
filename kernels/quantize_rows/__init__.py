"""Rounds every row to 8 bits with a scale of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.quantize_rows import reference
from kernels.quantize_rows.limits import LARGEST

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def quantize_rows(
    x: Tensor, dtype: torch.dtype, *, implementation: str = "torch"
) -> tuple[Tensor, Tensor]:
    """x is about values * scales[..., None]; the largest of a row becomes the largest of the type.

    x: [..., size], finite; dtype: int8 (-127 to 127) or float8_e4m3fn (-448 to 448). Returns values
    [..., size] of that type, rounded to the nearest, ties to even, and scales float32 [...], 0 for
    rows of zeros; rows below 1e-30 count as such. Both implementations give the same bits.

    Raises:
        ValueError: another type, or an unknown implementation.
    """
    if dtype not in LARGEST:
        raise ValueError(f"quantize_rows knows {', '.join(map(str, LARGEST))}, not {dtype}")
    if implementation == "torch":
        return reference.quantize_rows(x, dtype)
    if implementation == "triton":
        from kernels.quantize_rows.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(x, dtype)
    raise ValueError(f"quantize_rows has no implementation {implementation!r}")
