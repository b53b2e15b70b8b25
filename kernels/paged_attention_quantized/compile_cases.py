"""Attention over a quantised cache as it is launched for common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, GateCase
from kernels.paged_attention_quantized.decode.kernel import (
    decode_constants,
    paged_decode_quantized_kernel,
)
from kernels.paged_attention_quantized.prefill.kernel import (
    paged_prefill_quantized_kernel,
    prefill_constants,
)
from kernels.quantize_rows.compile_cases import QUANTIZED

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = tuple(
    f"stride_{name}"
    for name in ("qt", "qh", "ot", "oh", "cb", "ckv", "ch", "cs", "sb", "skv", "sh")
)
_LOCATION = ("query_start_loc", "seq_lens", "block_tables")
_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
#: Query heads per key/value head, and head size, and the queries' type.
_SHAPES = (
    *product((4,), (64, 128), ("bf16", "fp16", "fp32")),
    (3, 80, "bf16"),
    (7, 96, "bf16"),
    (2, 256, "bf16"),
    (1, 128, "bf16"),
    (20, 128, "bf16"),
    (48, 128, "bf16"),
)


#: The same, and whether there is a window.
_PREFILL_SHAPES = (
    (4, 64, "bf16", False),
    (4, 128, "bf16", False),
    (4, 128, "bf16", True),
    (4, 128, "fp32", False),
    (3, 80, "bf16", False),
    (2, 256, "bf16", False),
    (48, 128, "bf16", False),
)


def cases() -> Iterator[GateCase]:
    """All groups that differ in their tiles, even and odd sizes."""
    yield from _decode_cases()
    yield from _prefill_cases()


def _decode_cases() -> Iterator[GateCase]:
    for (name, archs), (group, head_dim, dtype) in product(QUANTIZED.values(), _SHAPES):
        constants, tiles = decode_constants(
            group=group, head_dim=head_dim, block_size=16, element_bytes=_ELEMENT_BYTES[dtype]
        )
        pointers = ("q", "values", "scales", "out", "partial_out", "partial_sum", "arrivals")
        yield GateCase(
            name=f"paged_attention_quantized {dtype} over {name} group {group} dim {head_dim}",
            kernel=paged_decode_quantized_kernel,
            types={
                **dict.fromkeys(("q", "out"), f"*{dtype}"),
                "values": f"*{name}",
                **dict.fromkeys(("scales", "partial_out", "partial_sum"), "*fp32"),
                **dict.fromkeys(("arrivals", *_LOCATION), "*i32"),
                **dict.fromkeys(("num_seqs", "target_programs", "window"), "i32"),
                **dict.fromkeys(("stride_table", *_STRIDES), "i32"),
                "log2_scale": "fp32",
            },
            constants=constants,
            aligned=frozenset((*pointers, *_LOCATION, *_STRIDES)),
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            archs=archs,
            instructions=dict.fromkeys(archs, (WIDE_LOAD,)),
        )


def _prefill_cases() -> Iterator[GateCase]:
    for (name, archs), shape in product(QUANTIZED.values(), _PREFILL_SHAPES):
        group, head_dim, dtype, has_window = shape
        for arch in archs:
            constants, tiles = prefill_constants(
                group=group,
                head_dim=head_dim,
                block_size=16,
                element_bytes=_ELEMENT_BYTES[dtype],
                has_window=has_window,
                arch=arch,
            )
            suffix = " window" if has_window else ""
            yield GateCase(
                name=f"paged_attention_quantized prefill {dtype} over {name} group {group} "
                f"dim {head_dim}{suffix}",
                kernel=paged_prefill_quantized_kernel,
                types={
                    **dict.fromkeys(("q", "out"), f"*{dtype}"),
                    "values": f"*{name}",
                    "scales": "*fp32",
                    **dict.fromkeys(_LOCATION, "*i32"),
                    **dict.fromkeys(("num_seqs", "window", "stride_table", *_STRIDES), "i32"),
                    "log2_scale": "fp32",
                },
                constants=constants,
                aligned=frozenset(("q", "values", "scales", "out", *_LOCATION, *_STRIDES)),
                num_warps=tiles.num_warps,
                num_stages=tiles.num_stages,
                archs=(arch,),
                instructions={arch: (WIDE_LOAD,)},
            )
