"""Gated SiLU as it is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, WIDE_STORE, GateCase
from kernels.silu_mul.kernel import COLUMNS, NUM_WARPS, silu_mul_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZES = ("size", "stride_gate", "stride_up", "stride_out")


def cases() -> Iterator[GateCase]:
    """Yield half and full precision."""
    for dtype in ("bf16", "fp16", "fp32"):
        yield GateCase(
            name=f"silu_mul {dtype}",
            kernel=silu_mul_kernel,
            types={
                **dict.fromkeys(("gate", "up", "out"), f"*{dtype}"),
                **dict.fromkeys(_SIZES, "i32"),
            },
            constants={"COLUMNS": COLUMNS},
            aligned=frozenset(("gate", "up", "out", *_SIZES)),
            num_warps=NUM_WARPS,
            instructions=dict.fromkeys((80, 90), (WIDE_LOAD, WIDE_STORE)),
        )
