"""Products of matrices in 8 bits as they are launched."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, GateCase
from kernels.quantize_rows.compile_cases import QUANTIZED
from kernels.quantized_matmul.kernel import (
    TILES,
    WIDE_TILES,
    matmul_constants,
    quantized_matmul_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from kernels.quantized_matmul.kernel import Tiles

_TENSORS = ("x", "x_scales", "weight", "weight_scales", "out")
_NUMBERS = ("num_tokens", "out_features", "in_features")
_STRIDES = ("stride_x", "stride_weight", "stride_out")
_SCALE_STRIDES = ("stride_x_scales", "stride_weight_scales")
#: Products of 8 bits on tensor cores: Ampere's and, from 64 tokens on, Hopper's.
_INTEGER_PRODUCT, _WARPGROUP_INTEGER, _WARPGROUP_FLOAT8 = r"\bIMMA\.", r"\bIGMMA\.", r"\bQGMMA\."


def cases() -> Iterator[GateCase]:
    """Yield all tiles, with and without groups, and with a last step that is not whole."""
    for dtype, tiles, in_features in product(QUANTIZED, (*TILES, WIDE_TILES), (4096, 4112)):
        yield _case(dtype, tiles, in_features)
    for dtype, tiles in product(QUANTIZED, TILES):
        yield _case(dtype, tiles, 4096, 128, 128)
    for dtype, tiles in product(QUANTIZED, (TILES[0], TILES[-1])):
        yield _case(dtype, tiles, 4112, 32, 64)
        yield _case(dtype, tiles, 4096, None, 128)


def _case(
    dtype: torch.dtype,
    tiles: Tiles,
    in_features: int,
    x_group: int | None = None,
    weight_group: int | None = None,
) -> GateCase:
    name, archs = QUANTIZED[dtype]
    warpgroup = _WARPGROUP_INTEGER if name == "i8" else _WARPGROUP_FLOAT8
    hopper = [warpgroup] if tiles.tokens >= 64 else [_INTEGER_PRODUCT] * (name == "i8")
    constants = matmul_constants(
        tiles=tiles,
        in_features=in_features,
        dtype=dtype,
        x_group=x_group,
        weight_group=weight_group,
    )
    groups = f" groups {x_group} {weight_group}" if weight_group else ""
    wide = (WIDE_LOAD,) if constants["FEATURES"] >= 128 else ()
    return GateCase(
        name=f"quantized_matmul {name} tokens {tiles.tokens} features {in_features}{groups}",
        kernel=quantized_matmul_kernel,
        types={
            **dict.fromkeys(("x", "weight"), f"*{name}"),
            **dict.fromkeys(("x_scales", "weight_scales"), "*fp32"),
            "out": "*bf16",
            **dict.fromkeys((*_NUMBERS, *_STRIDES, *_SCALE_STRIDES), "i32"),
        },
        constants=constants,
        aligned=frozenset((*_TENSORS, "out_features", "in_features", *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=(90,) if tiles == WIDE_TILES else archs,
        instructions={80: (*wide, _INTEGER_PRODUCT), 90: (*wide, *hopper)},
    )
