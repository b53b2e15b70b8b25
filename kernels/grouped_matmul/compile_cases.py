"""Products of grouped rows as they are launched for the experts of common models."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase
from kernels.grouped_matmul.kernel import (
    FULL_TILES,
    HALF_TILES,
    grouped_matmul_kernel,
    matmul_constants,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernels.grouped_matmul.kernel import Tiles

_TENSORS = ("x", "weight", "out")
_INDEXES = ("order", "ends")
_NUMBERS = ("num_groups", "out_features", "in_features", "repeats")
_STRIDES = ("stride_x", "stride_group", "stride_weight", "stride_out")
#: Experts and features of a row: Qwen3-30B-A3B, and gpt-oss, whose experts have biases.
_PLAIN, _WITH_BIAS = (128, 2048), (32, 2880)
#: Nemotron 3: what experts without gates give to their second product.
_UNGATED = (128, 1856)


def cases() -> Iterator[GateCase]:
    """Yield all tiles, with and without a bias and a last step of fewer features."""
    for tiles, sizes in product(HALF_TILES, (_PLAIN, _WITH_BIAS)):
        yield _case("bf16", tiles, *sizes)
    for tiles in HALF_TILES:
        yield _case("bf16", tiles, *_UNGATED)
    yield _case("fp16", HALF_TILES[0], *_PLAIN)
    for sizes in (_PLAIN, _WITH_BIAS):
        yield _case("fp32", FULL_TILES[0], *sizes)


def _case(dtype: str, tiles: Tiles, num_groups: int, in_features: int) -> GateCase:
    has_bias = (num_groups, in_features) == _WITH_BIAS
    bias = {"bias": f"*{dtype}", "stride_bias": "i32"} if has_bias else {}
    is_wide = dtype != "fp32" and tiles.rows >= 64
    return GateCase(
        name=f"grouped_matmul {dtype} rows {tiles.rows} groups {num_groups} features {in_features}",
        kernel=grouped_matmul_kernel,
        types={
            **dict.fromkeys(_TENSORS, f"*{dtype}"),
            **dict.fromkeys(_INDEXES, "*i64"),
            **dict.fromkeys((*_NUMBERS, *_STRIDES), "i32"),
            **bias,
        },
        constants={
            **matmul_constants(
                tiles=tiles, in_features=in_features, num_groups=num_groups, has_bias=has_bias
            ),
            **({} if has_bias else {"bias": None, "stride_bias": None}),
        },
        aligned=frozenset((*_TENSORS, *_INDEXES, *_STRIDES, *bias, "out_features", "in_features")),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        instructions={80: (WIDE_LOAD,), 90: (WIDE_LOAD, *(WARPGROUP_PRODUCT,) * is_wide)},
    )
