"""RMS norm as it is launched for common models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, WIDE_STORE, GateCase
from kernels.rms_norm.kernel import norm_constants, rms_norm_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = ("stride_x", "stride_residual", "stride_out", "stride_total")
_TENSORS = ("x", "residual", "weight", "out", "total")


def cases() -> Iterator[GateCase]:
    """Yield a small, a common, an odd and a wide model, in half and full precision."""
    yield _case("bf16", 1024, has_residual=False)
    yield _case("bf16", 4096, has_residual=True)
    yield _case("fp16", 5120, has_residual=True)
    yield _case("bf16", 16384, has_residual=True)
    yield _case("fp32", 8192, has_residual=True)


def _case(dtype: str, size: int, *, has_residual: bool) -> GateCase:
    constants, num_warps = norm_constants(size=size, has_residual=has_residual)
    return GateCase(
        name=f"rms_norm {dtype} size {size}{' residual' if has_residual else ''}",
        kernel=rms_norm_kernel,
        types={
            **dict.fromkeys(_TENSORS, f"*{dtype}"),
            "eps": "fp32",
            **dict.fromkeys(("size", *_STRIDES), "i32"),
        },
        constants=constants,
        aligned=frozenset((*_TENSORS, "size", *_STRIDES)),
        num_warps=num_warps,
        instructions=dict.fromkeys((80, 90), (WIDE_LOAD, WIDE_STORE)),
    )
