"""Paged attention as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate import GateCase
from kernels.paged_attention.kernel import choose_tile_sizes, paged_attention_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STRIDES = tuple(f"stride_{name}" for name in ("qt", "qh", "ot", "oh", "cb", "ckv", "ch", "cs"))
#: Query heads per key/value head, and head size: Llama 3 8B, Llama 3.2 1B, an odd one, a wide one.
_SHAPES = ((4, 128), (4, 64), (3, 80), (4, 256))


def cases() -> Iterator[GateCase]:
    """Decode and prefill for all shapes, with and without a window."""
    for (group, head_dim), max_query_len in product(_SHAPES, (1, 2048)):
        yield attention_case(group, head_dim, max_query_len, "bf16")
    yield attention_case(4, 128, 1, "bf16", window=True)
    yield attention_case(4, 128, 2048, "bf16", window=True)
    yield attention_case(4, 128, 1, "fp32")
    yield attention_case(4, 128, 2048, "fp32")


def attention_case(
    group: int, head_dim: int, max_query_len: int, dtype: str, *, window: bool = False
) -> GateCase:
    """Paged attention with the tiles that its launcher would choose."""
    tiles = choose_tile_sizes(
        group=group,
        head_dim=head_dim,
        max_query_len=max_query_len,
        element_bytes=_ELEMENT_BYTES[dtype],
    )
    integers = ("query_start_loc", "seq_lens", "block_tables")
    phase = "decode" if max_query_len == 1 else "prefill"
    suffix = " window" if window else ""
    return GateCase(
        name=f"paged_attention {phase} {dtype} group {group} dim {head_dim}{suffix}",
        kernel=paged_attention_kernel,
        types={
            **dict.fromkeys(("q", "cache", "out"), f"*{dtype}"),
            **dict.fromkeys(integers, "*i32"),
            "log2_scale": "fp32",
            "window": "i32",
            **dict.fromkeys((*_STRIDES, "stride_table"), "i32"),
        },
        constants={
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": 1 << (head_dim - 1).bit_length(),
            "BLOCK_SIZE": 16,
            "ROWS": tiles.rows,
            "KEYS": tiles.keys,
            "HAS_WINDOW": window,
        },
        aligned=frozenset(("q", "cache", "out", *integers, *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
