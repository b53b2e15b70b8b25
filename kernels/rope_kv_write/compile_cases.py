"""Rotation and KV write as they are launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, WIDE_STORE, GateCase
from kernels.rope_kv_write.kernel import rope_kv_write_kernel, write_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = tuple(
    f"stride_{name}"
    for name in ("qt", "qh", "kt", "kh", "vt", "vh", "at", "ot", "oh", "cb", "ckv", "ch", "cs")
)


def cases() -> Iterator[GateCase]:
    """Yield all head sizes, with and without norms, in half and full precision."""
    for head_dim, has_norm in product((64, 80, 128, 256), (False, True)):
        yield _case("bf16", head_dim, has_norm=has_norm)
    yield _case("fp16", 128, has_norm=False)
    yield _case("fp32", 128, has_norm=True)


def _case(dtype: str, head_dim: int, *, has_norm: bool) -> GateCase:
    constants, num_warps = write_constants(head_dim=head_dim, block_size=16, has_norm=has_norm)
    tensors = ("q", "k", "v", "cos_sin", "out", "cache", "q_weight", "k_weight")
    return GateCase(
        name=f"rope_kv_write {dtype} dim {head_dim}{' norm' if has_norm else ''}",
        kernel=rope_kv_write_kernel,
        types={
            **dict.fromkeys(tensors, f"*{dtype}"),
            "slot_mapping": "*i64",
            "eps": "fp32",
            **dict.fromkeys(("num_heads", "num_kv_heads", *_STRIDES), "i32"),
        },
        constants=constants,
        aligned=frozenset((*tensors, "slot_mapping", *_STRIDES)),
        num_warps=num_warps,
        instructions=dict.fromkeys((80, 90), (WIDE_LOAD, WIDE_STORE)),
    )
