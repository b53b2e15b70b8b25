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

_TENSORS = ("x", "x_scales", "weight", "weight_scales", "out")
_NUMBERS = ("num_tokens", "out_features", "in_features")
_STRIDES = ("stride_x", "stride_weight", "stride_out")
#: Products of 8 bits on tensor cores: Ampere's and, from 64 tokens on, Hopper's.
_INTEGER_PRODUCT, _WARPGROUP_INTEGER, _WARPGROUP_FLOAT8 = r"\bIMMA\.", r"\bIGMMA\.", r"\bQGMMA\."


def cases() -> Iterator[GateCase]:
    """Yield all tiles, with a number of features that is a multiple of the step and one not."""
    for (dtype, (name, archs)), tiles, in_features in product(
        QUANTIZED.items(), (*TILES, WIDE_TILES), (4096, 4112)
    ):
        warpgroup = _WARPGROUP_INTEGER if name == "i8" else _WARPGROUP_FLOAT8
        hopper = [warpgroup] if tiles.tokens >= 64 else [_INTEGER_PRODUCT] * (name == "i8")
        yield GateCase(
            name=f"quantized_matmul {name} tokens {tiles.tokens} features {in_features}",
            kernel=quantized_matmul_kernel,
            types={
                **dict.fromkeys(("x", "weight"), f"*{name}"),
                **dict.fromkeys(("x_scales", "weight_scales"), "*fp32"),
                "out": "*bf16",
                **dict.fromkeys((*_NUMBERS, *_STRIDES), "i32"),
            },
            constants=matmul_constants(tiles=tiles, in_features=in_features, dtype=dtype),
            aligned=frozenset((*_TENSORS, "out_features", "in_features", *_STRIDES)),
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            archs=(90,) if tiles == WIDE_TILES else archs,
            instructions={80: (WIDE_LOAD, _INTEGER_PRODUCT), 90: (WIDE_LOAD, *hopper)},
        )
