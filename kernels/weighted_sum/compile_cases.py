"""Weighted sums of rows as they are launched."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, WIDE_STORE, GateCase
from kernels.weighted_sum.kernel import COLUMNS, NUM_WARPS, weighted_sum_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORS = ("rows", "out")


def cases() -> Iterator[GateCase]:
    """Yield half and full precision, with weights and without."""
    for dtype, has_weights in product(("bf16", "fp16", "fp32"), (True, False)):
        weights = {"weights": f"*{dtype}"} if has_weights else {}
        yield GateCase(
            name=f"weighted_sum {dtype}{'' if has_weights else ' without weights'}",
            kernel=weighted_sum_kernel,
            types={
                **dict.fromkeys(_TENSORS, f"*{dtype}"),
                **dict.fromkeys(("size", "num_rows"), "i32"),
                **weights,
            },
            constants={
                "HAS_WEIGHTS": has_weights,
                "COLUMNS": COLUMNS,
                **({} if has_weights else {"weights": None}),
            },
            aligned=frozenset((*_TENSORS, *weights, "size")),
            num_warps=NUM_WARPS,
            instructions=dict.fromkeys((80, 90), (WIDE_LOAD, WIDE_STORE)),
        )
