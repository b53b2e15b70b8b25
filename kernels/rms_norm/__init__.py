"""Root-mean-square norm (Zhang and Sennrich 2019), of a tensor or of a residual sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.rms_norm import reference

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, implementation: str = "torch") -> Tensor:
    """Return x normalised over its last dimension, times the weight.

    x: [..., size]; weight: [size]. The norm is computed in float32 and rounded to x's type before
    the weight multiplies it, as in transformers; `torch.rms_norm` differs in half precision.

    Raises:
        ValueError: an unknown implementation.
    """
    if implementation == "torch":
        return reference.rms_norm(x, weight, eps=eps)
    if implementation == "triton":
        from kernels.rms_norm.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(x, None, weight, eps)[0]
    raise ValueError(f"rms_norm has no implementation {implementation!r}")


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, implementation: str = "torch"
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and that sum, rounded to x's type: the next residual.

    x, residual: [..., size]; weight: [size]. See `rms_norm`.

    Raises:
        ValueError: x and residual differ in shape, or an unknown implementation.
    """
    if x.shape != residual.shape:
        raise ValueError(f"x {tuple(x.shape)} and residual {tuple(residual.shape)} differ")
    if implementation == "torch":
        return reference.add_rms_norm(x, residual, weight, eps=eps)
    if implementation == "triton":
        from kernels.rms_norm.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(x, residual, weight, eps)
    raise ValueError(f"add_rms_norm has no implementation {implementation!r}")
