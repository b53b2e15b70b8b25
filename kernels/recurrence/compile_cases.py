"""Recurrences as they are launched for common models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import GateCase
from kernels.recurrence.conv import kernel as conv
from kernels.recurrence.delta import launch as delta
from kernels.recurrence.delta.kernel import gated_delta_kernel
from kernels.recurrence.mamba import launch as mamba
from kernels.recurrence.mamba.kernel import chunked_mamba_kernel, mamba_scan_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES = {"states": "*fp32", "blocks": "*i32", "query_start_loc": "*i32"}
_STRIDES = ("stride_rows", "stride_states")
#: Qwen3-Next and Qwen3.5; and sizes that are no power of two.
_DELTA_SIZES = ((128, 128), (24, 40))
#: Numbers of a head, and of a state's row: Granite 4, Bamba and Nemotron-H; no power of two; the
#: larger Falcon-H1, whose factors are on the rows that kernels read.
_MAMBA_SIZES = ((64, 128), (80, 96), (128, 256))


def cases() -> Iterator[GateCase]:
    """Yield the convolution of all types, and both recurrences."""
    for dtype, kept, has_bias in (
        ("bf16", 3, False),
        ("bf16", 3, True),
        ("fp16", 2, False),
        ("fp32", 3, True),
    ):
        yield _conv_case(dtype, kept, has_bias=has_bias)
    for key_dim, value_dim in _DELTA_SIZES:
        yield _scan_case(
            f"gated_delta keys {key_dim} values {value_dim}",
            gated_delta_kernel,
            ("rows", "decays", "rates", "out"),
            {**dict.fromkeys(("num_heads", "heads_per_key", "key_size"), "i32"), "scale": "fp32"},
            delta.delta_constants(key_dim=key_dim, value_dim=value_dim),
            delta.NUM_WARPS,
        )
    for head_dim, state_dim in _MAMBA_SIZES:
        counts = ("most_tokens", "num_heads", "heads_per_group", "inner_size", "group_size")
        for name, kernel, more, num_warps in (
            ("scan", mamba_scan_kernel, {}, mamba.NUM_WARPS),
            ("chunks", chunked_mamba_kernel, mamba.CHUNK_CONSTANTS, mamba.CHUNK_WARPS),
        ):
            if more and state_dim > mamba.MOST_CHUNKED:
                continue
            yield _scan_case(
                f"mamba_{name} head {head_dim} state {state_dim}",
                kernel,
                ("rows", "decays", "steps", "skip", "out"),
                dict.fromkeys(counts, "i32"),
                mamba.scan_constants(head_dim=head_dim, state_dim=state_dim) | more,
                num_warps,
            )


def _conv_case(dtype: str, kept: int, *, has_bias: bool) -> GateCase:
    bias = {"bias": f"*{dtype}"} if has_bias else {}
    return GateCase(
        name=f"causal_conv {dtype} rows {kept}{' bias' * has_bias}",
        kernel=conv.causal_conv_kernel,
        types={
            **dict.fromkeys(("rows", "weight"), f"*{dtype}"),
            **bias,
            **_PLACES,
            "out": "*fp32",
            **dict.fromkeys(("channels", "num_tiles", *_STRIDES), "i32"),
        },
        constants={
            "KEPT": kept,
            "ACTIVATE": True,
            "HAS_BIAS": has_bias,
            "TOKENS": conv.TOKENS,
            "CHANNELS": conv.CHANNELS,
            **({} if has_bias else {"bias": None}),
        },
        aligned=frozenset(("rows", "weight", *bias, *_PLACES, "out", "channels", *_STRIDES)),
        num_warps=conv.NUM_WARPS,
    )


def _scan_case(
    name: str,
    kernel: object,
    tensors: tuple[str, ...],
    numbers: dict[str, str],
    constants: dict[str, int],
    num_warps: int,
) -> GateCase:
    return GateCase(
        name=name,
        kernel=kernel,
        types={
            **dict.fromkeys(tensors, "*fp32"),
            **_PLACES,
            **dict.fromkeys(_STRIDES, "i32"),
            **numbers,
        },
        constants=constants,
        aligned=frozenset((*tensors, *_PLACES, *_STRIDES)),
        num_warps=num_warps,
    )
