"""The quantised KV write as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import GateCase
from kernels.kv_write.kernel import kv_write_quantized_kernel, write_constants
from kernels.quantize_rows.compile_cases import QUANTIZED

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = tuple(
    f"stride_{name}"
    for name in ("kt", "kh", "vt", "vh", "cb", "ckv", "ch", "cs", "sb", "skv", "sh")
)
_TENSORS = ("k", "v", "values", "scales", "slot_mapping")


def cases() -> Iterator[GateCase]:
    """Yield few and many heads of even and odd sizes, and static scales of some."""
    shapes = ((8, 128), (8, 64), (3, 80), (32, 128), (1, 256))
    variants = (*((*shape, False) for shape in shapes), (8, 128, True), (3, 80, True))
    for (dtype, (name, archs)), (heads, dim, is_static) in product(QUANTIZED.items(), variants):
        constants, num_warps = write_constants(
            num_kv_heads=heads, head_dim=dim, block_size=16, dtype=dtype, is_static=is_static
        )
        static = " static" * is_static
        yield GateCase(
            name=f"kv_write_quantized bf16 to {name} heads {heads} dim {dim}{static}",
            kernel=kv_write_quantized_kernel,
            types={
                **dict.fromkeys(("k", "v"), "*bf16"),
                "values": f"*{name}",
                "scales": "*fp32",
                "slot_mapping": "*i64",
                **dict.fromkeys(("num_kv_heads", *_STRIDES), "i32"),
            },
            constants=constants,
            aligned=frozenset((*_TENSORS, *_STRIDES)),
            num_warps=num_warps,
            archs=archs,
        )
