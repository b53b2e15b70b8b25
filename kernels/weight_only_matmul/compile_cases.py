"""Products with packed weights as they are launched."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase
from kernels.weight_only_matmul.kernel import weight_only_matmul_kernel
from kernels.weight_only_matmul.launch import FULL_TILES, HALF_TILES, Tiles, matmul_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = ("num_tokens", "out_features", "in_features", "steps_per_part")
_STRIDES = ("stride_x", "stride_values", "stride_out")
_ALIGNED = ("x", "values", "scales", "zeros", "out", "partials", "arrivals", "out_features")
#: Triton's types of the weight and its scales, whether it has zeros, and the architectures.
_KINDS = (
    ("u8", "bf16", False, (80, 90)),
    ("u8", "bf16", True, (80, 90)),
    ("i8", "fp32", False, (80, 90)),
    ("fp8e4nv", "fp32", False, (90,)),
)


def cases() -> Iterator[GateCase]:
    """Yield all tiles, types of x and kinds of weights, with and without a partial last step."""
    for kind in _KINDS:
        for tiles, dtype in product(HALF_TILES, ("bf16", "fp16")):
            yield _case(kind, tiles, dtype, 4096)
        yield _case(kind, HALF_TILES[0], "bf16", 4112)
        yield _case(kind, FULL_TILES[0], "fp32", 4096)


def _case(
    kind: tuple[str, str, bool, tuple[int, ...]], tiles: Tiles, dtype: str, in_features: int
) -> GateCase:
    name, scale, has_zeros, archs = kind
    label = f"int4{' zeros' if has_zeros else ''}" if name == "u8" else name
    products = () if dtype == "fp32" else (WARPGROUP_PRODUCT,)
    return GateCase(
        name=f"weight_only_matmul {dtype} {label} tokens {tiles.tokens} features {in_features}",
        kernel=weight_only_matmul_kernel,
        types={
            **dict.fromkeys(("x", "out"), f"*{dtype}"),
            "values": f"*{name}",
            "scales": f"*{scale}",
            "zeros": "*u8",
            "partials": "*fp32",
            "arrivals": "*i32",
            **dict.fromkeys((*_NUMBERS, *_STRIDES), "i32"),
        },
        constants=matmul_constants(
            tiles=tiles, in_features=in_features, is_int4=name == "u8", has_zeros=has_zeros
        ),
        aligned=frozenset((*_ALIGNED, "in_features", *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        archs=archs,
        instructions={80: (WIDE_LOAD,), 90: (WIDE_LOAD, *products)},
    )
