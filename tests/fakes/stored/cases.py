"""Formats with their settings, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.compressed import FLOAT8, FP4, INT4, MX, NV, TOKENS8, Compressed
from tests.fakes.stored.floats import Fbgemm, Fp8
from tests.fakes.stored.integers import Awq, Gptq, TorchAo
from tests.fakes.stored.quark import (
    ModelOptFp4,
    ModelOptFp8,
    QuarkFloat8,
    QuarkInt4,
    QuarkInt8,
    QuarkInt8Inputs,
    QuarkMx,
)

if TYPE_CHECKING:
    from tests.fakes.stored.base import RoundingWriter, Writer

_FP6 = {**FP4, "num_bits": 6}
_ROWS8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel"}
_WHOLE8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "tensor"}

#: Inputs are not rounded.
WEIGHTS_ONLY: dict[str, Writer] = {
    **{
        f"ct int{bits} {'even' if is_even else 'uneven'}": Compressed(
            "pack-quantized", {**INT4, "num_bits": bits, "symmetric": is_even}
        )
        for bits in range(2, 9)
        for is_even in (True, False)
    },
    "ct int4 rows": Compressed("pack-quantized", {**_ROWS8, "num_bits": 4}),
    "ct int8 whole": Compressed("pack-quantized", _WHOLE8),
    "ct int4 float16": Compressed("pack-quantized", INT4, scale_dtype=torch.float16),
    "ct naive int8": Compressed("naive-quantized", _ROWS8),
    "ct naive fp8": Compressed("naive-quantized", {**FLOAT8, "strategy": "channel"}),
    "ct naive fp8 blocks": Compressed(
        "naive-quantized", {**FLOAT8, "strategy": "block", "block_structure": [64, 64]}
    ),
    "ct nvfp4": Compressed("nvfp4-pack-quantized", {**FP4, **NV}),
    "ct mxfp4": Compressed("mxfp4-pack-quantized", {**FP4, **MX}),
    **{f"gptq {bits}": Gptq(bits=bits) for bits in (2, 3, 4, 8)},
    "gptq uneven": Gptq(sym=False),
    "gptq v2": Gptq(version=2, sym=False),
    "gptq in order": Gptq(desc_act=True, sym=False),
    "gptq 3 in order": Gptq(bits=3, desc_act=True),
    "gptq rows": Gptq(group=-1),
    "awq": Awq(),
    "torchao int4": TorchAo(),
    "torchao int8": TorchAo(bits=8),
    "quark int8": QuarkInt8(),
    "quark int4": QuarkInt4(),
    "quark int4 plain": QuarkInt4(pack_method="order"),
    "quark uint4": QuarkInt4("uint4"),
    "quark uint4 plain": QuarkInt4("uint4", "order"),
    "quark nvfp4": ModelOptFp4("quark"),
    "modelopt nvfp4": ModelOptFp4(),
}
#: Inputs are rounded, too.
WITH_INPUTS: dict[str, RoundingWriter] = {
    "ct w4a8": Compressed("pack-quantized", INT4, TOKENS8),
    "ct w8a8": Compressed("int-quantized", _ROWS8, TOKENS8),
    "ct w8a8 uneven": Compressed("int-quantized", _ROWS8, {**TOKENS8, "symmetric": False}),
    "ct w8a8 static": Compressed("int-quantized", _WHOLE8, _WHOLE8),
    "ct w8a8 static uneven": Compressed(
        "int-quantized", {**_ROWS8, "symmetric": False}, {**_WHOLE8, "symmetric": False}
    ),
    "ct fp8 tokens": Compressed(
        "float-quantized",
        {**FLOAT8, "strategy": "channel"},
        {**FLOAT8, "strategy": "token", "dynamic": True},
    ),
    "ct fp8 static": Compressed(
        "float-quantized", {**FLOAT8, "strategy": "tensor"}, {**FLOAT8, "strategy": "tensor"}
    ),
    "ct fp8 blocks": Compressed(
        "float-quantized",
        {**FLOAT8, "strategy": "block", "block_structure": [64, 64]},
        {**FLOAT8, "strategy": "group", "group_size": 32, "dynamic": True},
    ),
    "ct nvfp4 inputs": Compressed(
        "nvfp4-pack-quantized", {**FP4, **NV}, {**FP4, **NV, "dynamic": "local"}
    ),
    "ct mxfp4 inputs": Compressed(
        "mxfp4-pack-quantized", {**FP4, **MX}, {**FP4, **MX, "dynamic": True}
    ),
    "ct mxfp6 inputs": Compressed(
        "mxfp6-pack-quantized", {**_FP6, **MX}, {**_FP6, **MX, "dynamic": True}
    ),
    "ct mxfp8 inputs": Compressed(
        "mxfp8-quantized", {**FLOAT8, **MX}, {**FLOAT8, **MX, "dynamic": True}
    ),
    "fp8 blocks": Fp8(),
    "fp8 static": Fp8(block=None),
    "fbgemm": Fbgemm(),
    "quark int8 inputs": QuarkInt8Inputs(),
    "quark fp8": QuarkFloat8(),
    "quark mxfp4": QuarkMx(),
    "quark mxfp6": QuarkMx("fp6_e2m3", "fp6_e3m2"),
    "quark mxfp6 wide": QuarkMx("fp6_e3m2", "fp6_e2m3"),
    "quark mxfp8": QuarkMx("fp8_e4m3", "fp8_e4m3"),
    "modelopt fp8": ModelOptFp8(),
}
ALL: dict[str, Writer] = {**WEIGHTS_ONLY, **WITH_INPUTS}
