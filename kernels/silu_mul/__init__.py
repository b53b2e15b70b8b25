"""The gate of SwiGLU (Shazeer 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.silu_mul import reference

if TYPE_CHECKING:
    from torch import Tensor


def silu_mul(gate: Tensor, up: Tensor, *, implementation: str = "torch") -> Tensor:
    """Return silu(gate) * up [num_tokens, inner]; silu(gate) is rounded, as in transformers.

    gate, up: [num_tokens, inner], often two ranges of one product.

    Raises:
        ValueError: gate and up differ in shape, or an unknown implementation.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} differ")
    if implementation == "torch":
        return reference.silu_mul(gate, up)
    if implementation == "triton":
        from kernels.silu_mul.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(gate, up)
    raise ValueError(f"silu_mul has no implementation {implementation!r}")
