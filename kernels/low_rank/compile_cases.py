"""Products of low rank as they are launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import GateCase
from kernels.low_rank.kernel import (
    FEATURES,
    NUM_WARPS,
    OUTPUTS,
    RANKS,
    ROWS,
    expand_kernel,
    shrink_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Of queries, keys and values; gates and ups have two.
_PARTS = 3
_TABLES = {"low": "*fp32", "segments": "*i32", "slots": "*i64"}


def cases() -> Iterator[GateCase]:
    """Yield half and full precision."""
    for dtype in ("bf16", "fp16", "fp32"):
        sizes = ("in_size", "stride_x", "stride_low")
        yield GateCase(
            name=f"low_rank shrink {dtype}",
            kernel=shrink_kernel,
            types={"x": f"*{dtype}", **_TABLES, **dict.fromkeys(sizes, "i32")},
            constants={
                "FIELDS": 3 + 5 * _PARTS,
                "ROWS": ROWS,
                "RANKS": RANKS,
                "FEATURES": FEATURES,
            },
            aligned=frozenset(("x", *_TABLES, *sizes)),
            num_warps=NUM_WARPS,
        )
        sizes = ("out_size", "stride_low", "stride_out")
        yield GateCase(
            name=f"low_rank expand {dtype}",
            kernel=expand_kernel,
            types={"out": f"*{dtype}", **_TABLES, **dict.fromkeys(sizes, "i32")},
            constants={
                "PARTS": _PARTS,
                "FIELDS": 3 + 5 * _PARTS,
                "ROWS": ROWS,
                "RANKS": RANKS,
                "OUTPUTS": OUTPUTS,
            },
            aligned=frozenset(("out", *_TABLES, *sizes)),
            num_warps=NUM_WARPS,
        )
