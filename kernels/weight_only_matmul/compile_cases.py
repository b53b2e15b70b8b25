"""Products with packed weights as they are launched."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase
from kernels.weight_only_matmul.kernel import weight_only_matmul_kernel
from kernels.weight_only_matmul.launch import FULL_TILES, HALF_TILES, Tiles, matmul_constants
from kernels.weight_only_matmul.weight import HALF, MIDDLE, STEP, PackedWeight

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = ("num_tokens", "out_features", "in_features", "steps_per_part")
_STRIDES = ("stride_x", "stride_out")
_ALIGNED = ("x", "values", "scales", "out", "partials", "arrivals", "out_features", "in_features")
#: Triton's names of the types of values, scales and what else a weight has.
_TYPES = {
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "u8",
    torch.float8_e5m2: "u8",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}
_OUT_FEATURES = 4096


class _Form(NamedTuple):
    values: torch.dtype
    group: int
    scales: torch.dtype
    #: What else it has: zeros, offsets, a table, codes of E2M1.
    others: frozenset[str] = frozenset()


#: By name in the record; uint8 are codes of 4 bits. A group of 0 is a row.
_FORMS = {
    "int4 128": _Form(torch.uint8, 128, torch.bfloat16),
    "int4 128 zeros": _Form(torch.uint8, 128, torch.bfloat16, frozenset({"zeros"})),
    "int4 32": _Form(torch.uint8, 32, torch.bfloat16),
    "int4 32 zeros": _Form(torch.uint8, 32, torch.float16, frozenset({"zeros"})),
    "int4 32 offsets": _Form(torch.uint8, 32, torch.float32, frozenset({"offsets"})),
    "int4 48": _Form(torch.uint8, 48, torch.bfloat16),
    "int4 rows": _Form(torch.uint8, 0, torch.float32),
    "mxfp4": _Form(torch.uint8, 32, torch.uint8, frozenset({"e2m1"})),
    "nvfp4": _Form(torch.uint8, 16, torch.float32, frozenset({"e2m1"})),
    "table 64": _Form(torch.uint8, 64, torch.float32, frozenset({"table"})),
    "int8 rows": _Form(torch.int8, 0, torch.float32),
    "int8 32": _Form(torch.int8, 32, torch.float16),
    "int8 16 offsets": _Form(torch.int8, 16, torch.float32, frozenset({"offsets"})),
    "fp8 rows": _Form(torch.float8_e4m3fn, 0, torch.float32),
    "fp8 128": _Form(torch.float8_e4m3fn, 128, torch.float32),
    "mxfp8": _Form(torch.float8_e4m3fn, 32, torch.uint8),
    "e5m2 rows": _Form(torch.float8_e5m2, 0, torch.float32),
}


def cases() -> Iterator[GateCase]:
    """Yield all forms with all tiles; some with other types of x, and with a partial last step."""
    for name, form in _FORMS.items():
        for tiles in HALF_TILES:
            yield _case(name, form, tiles, "bf16", 4096)
        yield _case(name, form, FULL_TILES[0], "fp32", 4112)
    for name in ("int4 128", "mxfp4", "int8 rows", "fp8 rows"):
        yield _case(name, _FORMS[name], HALF_TILES[0], "bf16", 4112)
    for name, tiles in product(("int4 128", "int4 32", "mxfp4", "fp8 rows"), HALF_TILES):
        yield _case(name, _FORMS[name], tiles, "fp16", 4096)


def _case(name: str, form: _Form, tiles: Tiles, dtype: str, in_features: int) -> GateCase:
    weight = _weight(form, in_features)
    others = {
        each: f"*{_TYPES[tensor.dtype]}"
        for each, tensor in weight.tensors.items()
        if each not in ("values", "scales")
    }
    products = () if dtype == "fp32" else (WARPGROUP_PRODUCT,)
    absent = {"zeros", "offsets", "table"} - others.keys()
    return GateCase(
        name=f"weight_only_matmul {dtype} {name} tokens {tiles.tokens} features {in_features}",
        kernel=weight_only_matmul_kernel,
        types={
            **dict.fromkeys(("x", "out"), f"*{dtype}"),
            "values": f"*{_TYPES[form.values]}",
            "scales": f"*{_TYPES[form.scales]}",
            "partials": "*fp32",
            "arrivals": "*i32",
            **others,
            **dict.fromkeys((*_NUMBERS, *_STRIDES), "i32"),
        },
        constants={**matmul_constants(tiles=tiles, weight=weight), **dict.fromkeys(absent)},
        aligned=frozenset((*_ALIGNED, *others, *_STRIDES)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        instructions={80: (WIDE_LOAD,), 90: (WIDE_LOAD, *products)},
    )


def _weight(form: _Form, in_features: int) -> PackedWeight:
    """A weight without memory."""
    is_4_bits, group = form.values == torch.uint8, form.group or in_features
    steps = -(-in_features // STEP)
    shape = (steps, _OUT_FEATURES, HALF) if is_4_bits else (_OUT_FEATURES, in_features)
    of_groups = -(-in_features // group), _OUT_FEATURES

    def other(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        return torch.empty(shape, dtype=dtype, device="meta") if name in form.others else None

    is_unsigned = form.others & {"offsets", "table", "e2m1"}
    return PackedWeight(
        values=torch.empty(shape, dtype=form.values, device="meta"),
        scales=torch.empty(of_groups, dtype=form.scales, device="meta"),
        in_features=in_features,
        group=group,
        zeros=other("zeros", of_groups, torch.int8),
        offsets=other("offsets", of_groups, torch.float32),
        middle=MIDDLE if is_4_bits and not is_unsigned else 0,
        is_e2m1="e2m1" in form.others,
        table=other("table", (16,), torch.float32),
    )
