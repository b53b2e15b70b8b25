"""Paged attention as it is launched for common models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase
from kernels.paged_attention.decode.kernel import paged_decode_kernel
from kernels.paged_attention.decode.launch import decode_constants
from kernels.paged_attention.prefill.kernel import paged_prefill_kernel
from kernels.paged_attention.prefill.launch import prefill_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STRIDES = tuple(f"stride_{name}" for name in ("qt", "qh", "ot", "oh", "cb", "ckv", "ch", "cs"))
_LOCATION = ("query_start_loc", "seq_lens", "block_tables")
#: Query heads per key/value head, and head size: Llama 3 8B and 3.2 1B, odd ones, a wide one.
_SHAPES = ((4, 128), (4, 64), (3, 80), (7, 96), (2, 256))


def cases() -> Iterator[GateCase]:
    """Both kernels for all head sizes, with and without a window, in half and full precision."""
    for group, head_dim in _SHAPES:
        yield decode_case(group, head_dim, "bf16")
        for arch in (80, 90):
            yield prefill_case(group, head_dim, "bf16", arch=arch)
    # No group has other tiles than these: 16 rows, 32, and more.
    for group, block_size in ((1, 128), (20, 32), (48, 64)):
        yield decode_case(group, 128, "bf16", block_size=block_size)
    yield decode_case(3, 80, "fp32")
    for arch in (80, 90):
        yield prefill_case(4, 128, "bf16", arch=arch, window=True, block_size=128)
        yield prefill_case(4, 128, "fp16", arch=arch)
        yield prefill_case(4, 128, "fp32", arch=arch)


def decode_case(group: int, head_dim: int, dtype: str, *, block_size: int = 16) -> GateCase:
    """The decode kernel with the tiles that its launcher would choose."""
    constants, tiles = decode_constants(
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=_ELEMENT_BYTES[dtype],
    )
    pointers = ("q", "cache", "out", "partial_out", "partial_sum", "arrivals", *_LOCATION)
    return GateCase(
        name=f"paged_attention decode {dtype} group {group} dim {head_dim} block {block_size}",
        kernel=paged_decode_kernel,
        types={
            **dict.fromkeys(("q", "cache", "out"), f"*{dtype}"),
            **dict.fromkeys(("partial_out", "partial_sum"), "*fp32"),
            **dict.fromkeys(("arrivals", *_LOCATION), "*i32"),
            **dict.fromkeys(("num_seqs", "target_programs", "window", "stride_table"), "i32"),
            **dict.fromkeys(_STRIDES, "i32"),
            "log2_scale": "fp32",
        },
        constants=constants,
        aligned=frozenset((*pointers, *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        instructions={80: (WIDE_LOAD,), 90: (WIDE_LOAD,)},
    )


def prefill_case(
    group: int, head_dim: int, dtype: str, *, arch: int, window: bool = False, block_size: int = 16
) -> GateCase:
    """The prefill kernel with the tiles that its launcher would choose on `arch`."""
    constants, tiles = prefill_constants(
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        element_bytes=_ELEMENT_BYTES[dtype],
        has_window=window,
        arch=arch,
    )
    suffix = " window" if window else ""
    wanted = (WIDE_LOAD,) if dtype == "fp32" else (WIDE_LOAD, WARPGROUP_PRODUCT)
    return GateCase(
        name=f"paged_attention prefill {dtype} group {group} dim {head_dim}{suffix}",
        kernel=paged_prefill_kernel,
        types={
            **dict.fromkeys(("q", "cache", "out"), f"*{dtype}"),
            **dict.fromkeys(_LOCATION, "*i32"),
            **dict.fromkeys(("num_seqs", "window", "stride_table", *_STRIDES), "i32"),
            "log2_scale": "fp32",
        },
        constants=constants,
        aligned=frozenset(("q", "cache", "out", *_LOCATION, *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=(arch,),
        instructions={80: (WIDE_LOAD,), 90: wanted},
    )
