"""Rounds rows to 8 bits with one scale per row."""

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
    """Return values and scales such that x is about values * scales[..., None].

    x: [..., size], finite; dtype: int8 (-127 to 127) or float8_e4m3fn (-448 to 448). The largest
    magnitude of a row becomes the type's largest number. Values [..., size] are rounded to the
    nearest, ties to even; scales are float32 [...]. Rows of magnitudes up to 1e-30 become zeros;
    the scale of a row of zeros is 0. Both implementations return the same bits.

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
