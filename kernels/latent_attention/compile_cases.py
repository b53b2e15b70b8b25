"""Attention over latent rows as it is launched for common models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, GateCase
from kernels.latent_attention.kernel import latent_decode_kernel
from kernels.latent_attention.launch import choose_tiles, decode_constants
from kernels.quantize_rows.compile_cases import QUANTIZED

if TYPE_CHECKING:
    from collections.abc import Iterator

#: DeepSeek-V2, V3 and their kin, and MiniCPM3: numbers of a row that are not rotated, and that are.
_ROWS = ((512, 64), (256, 32))
_QUERIES = ("latents", "rotated", "out")
_MEMORY = ("partial_out", "partial_sum")
_LOCATION = ("arrivals", "query_start_loc", "seq_lens", "block_tables")
_NUMBERS = ("num_heads", "num_seqs", "target_programs", "stride_table")
_STRIDES = tuple(f"stride_{name}" for name in ("lt", "lh", "rt", "rh", "ot", "oh", "cb", "cs"))


def cases() -> Iterator[GateCase]:
    """Yield all types over plain and quantised caches."""
    for latent_dim, rope_dim in _ROWS:
        yield _case("bf16", latent_dim, rope_dim)
    yield _case("fp16", *_ROWS[0])
    yield _case("fp32", *_ROWS[0])
    for stored, archs in QUANTIZED.values():
        yield _case("bf16", *_ROWS[0], stored=stored, archs=archs)


def _case(
    dtype: str,
    latent_dim: int,
    rope_dim: int,
    *,
    stored: str | None = None,
    archs: tuple[int, ...] = (80, 90),
) -> GateCase:
    tiles = choose_tiles(element_bytes=4 if dtype == "fp32" else 2)
    scales = {"scales": "*fp32", "stride_sb": "i32"} if stored else {}
    over = f" over {stored}" if stored else ""
    return GateCase(
        name=f"latent_attention decode {dtype}{over} row {latent_dim}+{rope_dim}",
        kernel=latent_decode_kernel,
        types={
            **dict.fromkeys(_QUERIES, f"*{dtype}"),
            "cache": f"*{stored or dtype}",
            **dict.fromkeys(_MEMORY, "*fp32"),
            **dict.fromkeys(_LOCATION, "*i32"),
            **dict.fromkeys((*_NUMBERS, *_STRIDES), "i32"),
            "log2_scale": "fp32",
            **scales,
        },
        constants={
            **decode_constants(
                latent_dim=latent_dim,
                rope_dim=rope_dim,
                block_size=16,
                tiles=tiles,
                is_quantized=stored is not None,
            ),
            **({} if stored else {"scales": None, "stride_sb": None}),
        },
        aligned=frozenset((*_QUERIES, "cache", *_MEMORY, *_LOCATION, *_STRIDES, *scales)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=archs,
        instructions=dict.fromkeys(archs, (WIDE_LOAD,)),
    )
