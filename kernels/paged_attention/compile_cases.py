"""Paged attention as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase
from kernels.paged_attention.decode.kernel import paged_decode_kernel
from kernels.paged_attention.decode.launch import decode_constants
from kernels.paged_attention.prefill.kernel import paged_prefill_kernel
from kernels.paged_attention.prefill.launch import prefill_constants
from kernels.paged_attention.shape import AttentionShape
from kernels.quantize_rows.compile_cases import QUANTIZED

if TYPE_CHECKING:
    from collections.abc import Iterator

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STRIDES = tuple(f"stride_{name}" for name in ("qt", "qh", "ot", "oh", "cb", "ckv", "ch", "cs"))
_SCALES = ("scales", "stride_sb", "stride_skv", "stride_sh")
_LOCATION = ("query_start_loc", "seq_lens", "block_tables")
_NUMBERS = {
    "num_seqs": "i32",
    "window": "i32",
    "stride_table": "i32",
    "log2_scale": "fp32",
    "softcap": "fp32",
}
#: Query heads per key/value head, and head size: Llama 3 8B and 3.2 1B, odd ones, a wide one.
_SHAPES = ((4, 128), (4, 64), (3, 80), (7, 96), (2, 256))
#: The same for models whose scores are not plain: Gemma 2 9B has a cap, gpt-oss has sinks.
_CAPPED, _WITH_SINKS = (2, 256), (8, 64)
#: For a quantised cache: the same with the queries' type.
_QUANTIZED_DECODE_SHAPES = (
    *product((4,), (64, 128), ("bf16", "fp16", "fp32")),
    *((group, head_dim, "bf16") for group, head_dim in _SHAPES[2:]),
    *product((1, 20, 48), (128,), ("bf16",)),
)
#: The same, and whether there is a window.
_QUANTIZED_PREFILL_SHAPES = (
    (4, 64, "bf16", False),
    (4, 128, "bf16", False),
    (4, 128, "bf16", True),
    (4, 128, "fp32", False),
    (3, 80, "bf16", False),
    (2, 256, "bf16", False),
    (48, 128, "bf16", False),
)


def cases() -> Iterator[GateCase]:
    """Yield both kernels for all head sizes and tiles, over plain and over quantised caches."""
    yield from _plain_cases()
    for stored, archs in ((None, (80, 90)), *QUANTIZED.values()):
        yield decode_case(*_CAPPED, "bf16", stored=stored, archs=archs, softcap=True)
        yield decode_case(*_WITH_SINKS, "bf16", stored=stored, archs=archs, sinks=True)
        # In both models, every second layer has a window.
        for arch, window in product(archs, (False, True)):
            yield prefill_case(
                *_CAPPED, "bf16", arch=arch, stored=stored, window=window, softcap=True
            )
            yield prefill_case(
                *_WITH_SINKS, "bf16", arch=arch, stored=stored, window=window, sinks=True
            )


def _plain_cases() -> Iterator[GateCase]:
    """Yield the cases whose scores are products with a factor."""
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
    for stored, archs in QUANTIZED.values():
        for group, head_dim, dtype in _QUANTIZED_DECODE_SHAPES:
            yield decode_case(group, head_dim, dtype, stored=stored, archs=archs)
        for (group, head_dim, dtype, window), arch in product(_QUANTIZED_PREFILL_SHAPES, archs):
            yield prefill_case(group, head_dim, dtype, arch=arch, window=window, stored=stored)


def decode_case(
    group: int,
    head_dim: int,
    dtype: str,
    *,
    stored: str | None = None,
    block_size: int = 16,
    archs: tuple[int, ...] = (80, 90),
    softcap: bool = False,
    sinks: bool = False,
) -> GateCase:
    """Return the decode kernel with the tiles that its launcher would choose.

    dtype: of the queries; stored: of a quantised cache.
    """
    shape = _shape(group, head_dim, block_size, dtype, stored, softcap=softcap, sinks=sinks)
    constants, tiles = decode_constants(shape)
    tensors = _tensors(dtype, shape, stored) | {
        **dict.fromkeys(("partial_out", "partial_sum"), "*fp32"),
        "arrivals": "*i32",
    }
    sizes, suffix = f"group {group} dim {head_dim}", _suffix(softcap=softcap, sinks=sinks)
    return GateCase(
        name=f"paged_attention decode {dtype} {sizes} block {block_size}{suffix}"
        if stored is None
        else f"paged_attention_quantized {dtype} over {stored} {sizes}{suffix}",
        kernel=paged_decode_kernel,
        types={**tensors, **_NUMBERS, "target_programs": "i32"},
        constants=constants | _absent(shape),
        aligned=frozenset(tensors),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=archs,
        instructions=dict.fromkeys(archs, (WIDE_LOAD,)),
    )


def prefill_case(
    group: int,
    head_dim: int,
    dtype: str,
    *,
    arch: int,
    stored: str | None = None,
    window: bool = False,
    block_size: int = 16,
    softcap: bool = False,
    sinks: bool = False,
) -> GateCase:
    """Return the prefill kernel with the tiles that its launcher would choose on `arch`.

    dtype: of the queries; stored: of a quantised cache.
    """
    shape = _shape(group, head_dim, block_size, dtype, stored, softcap=softcap, sinks=sinks)
    constants, tiles = prefill_constants(shape, has_window=window, arch=arch)
    begin = "paged_attention" if stored is None else "paged_attention_quantized"
    over = "" if stored is None else f" over {stored}"
    suffix = " window" * window + _suffix(softcap=softcap, sinks=sinks)
    has_warpgroup_product = arch == 90 and stored is None and dtype != "fp32"
    tensors = _tensors(dtype, shape, stored)
    return GateCase(
        name=f"{begin} prefill {dtype}{over} group {group} dim {head_dim}{suffix}",
        kernel=paged_prefill_kernel,
        types=tensors | _NUMBERS,
        constants=constants | _absent(shape),
        aligned=frozenset(tensors),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=(arch,),
        instructions={arch: (WIDE_LOAD, *(WARPGROUP_PRODUCT,) * has_warpgroup_product)},
    )


def _shape(
    group: int,
    head_dim: int,
    block_size: int,
    dtype: str,
    stored: str | None,
    *,
    softcap: bool,
    sinks: bool,
) -> AttentionShape:
    return AttentionShape(
        group,
        head_dim,
        block_size,
        _ELEMENT_BYTES[dtype],
        quantized=stored is not None,
        has_softcap=softcap,
        has_sinks=sinks,
    )


def _suffix(*, softcap: bool, sinks: bool) -> str:
    return " softcap" * softcap + " sinks" * sinks


def _tensors(dtype: str, shape: AttentionShape, stored: str | None) -> dict[str, str]:
    """Return the types of pointers and strides, all of which are aligned."""
    types = {
        **dict.fromkeys(("q", "out"), f"*{dtype}"),
        "cache": f"*{stored or dtype}",
        **dict.fromkeys(_LOCATION, "*i32"),
        **dict.fromkeys(_STRIDES, "i32"),
    }
    if shape.quantized:
        types |= {**dict.fromkeys(_SCALES, "i32"), "scales": "*fp32"}
    if shape.has_sinks:
        types["sinks"] = "*fp32"
    return types


def _absent(shape: AttentionShape) -> dict[str, None]:
    """Return the arguments that are None, hence constants."""
    is_there = {
        **dict.fromkeys(_SCALES, shape.quantized),
        "softcap": shape.has_softcap,
        "sinks": shape.has_sinks,
    }
    return {name: None for name, found in is_there.items() if not found}
