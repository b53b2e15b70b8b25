"""Quantising rows as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import torch

from kernels.compile_gate.gate import WIDE_LOAD, GateCase
from kernels.quantize_rows.kernel import quantize_constants, quantize_rows_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Triton's name of each type, and the architectures that have the type.
QUANTIZED = {torch.int8: ("i8", (80, 90)), torch.float8_e4m3fn: ("fp8e4nv", (90,))}
_ALIGNED = ("x", "values", "scales", "size", "stride_x", "stride_values")


def cases() -> Iterator[GateCase]:
    """Yield hidden and intermediate sizes, up to a very wide one."""
    for (dtype, (name, archs)), size in product(QUANTIZED.items(), (64, 1024, 4096, 14336, 28672)):
        constants, num_warps = quantize_constants(size=size, dtype=dtype)
        yield GateCase(
            name=f"quantize_rows bf16 to {name} size {size}",
            kernel=quantize_rows_kernel,
            types={
                "x": "*bf16",
                "values": f"*{name}",
                "scales": "*fp32",
                **dict.fromkeys(("size", "stride_x", "stride_values"), "i32"),
            },
            constants=constants,
            aligned=frozenset(_ALIGNED),
            num_warps=num_warps,
            archs=archs,
            instructions=dict.fromkeys(archs, (WIDE_LOAD,)) if size >= 1024 else {},
        )
