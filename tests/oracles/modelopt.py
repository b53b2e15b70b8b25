"""Checkpoints of NVIDIA's ModelOpt, exported by itself, read by its tensors.

On a CPU it rounds the inputs of FP8 only.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import modelopt
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from torch.nn.functional import linear

from tests.oracles.base import (
    DENSE,
    INPUTS,
    KEPT,
    OUTPUTS,
    ROUNDED,
    TENSORS,
    About,
    keep_files,
    write_oracle,
)
from tests.oracles.models import calibration, small_llama, some_inputs

if TYPE_CHECKING:
    from pathlib import Path

_DOWN = "model.layers.0.mlp.down_proj"


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    config: str
    #: Settings of quantisers that come last.
    beside: tuple[dict[str, Any], ...] = ()
    rounds: bool = False


_KV = tuple(mtq.FP8_KV_CFG["quant_cfg"])
_NVFP4 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
_FOURS = (
    {"quantizer_name": "*mlp*weight_quantizer", "cfg": _NVFP4},
    {"quantizer_name": "*mlp*input_quantizer", "enable": False},
)
CASES = {
    "fp8": _Case("FP8, inputs by stored scale", "FP8_DEFAULT_CFG", rounds=True),
    "fp8-kv": _Case("FP8 with scales of a KV cache", "FP8_DEFAULT_CFG", _KV, rounds=True),
    "fp8-tokens": _Case(
        "FP8 by row, inputs by token", "FP8_PER_CHANNEL_PER_TOKEN_CFG", rounds=True
    ),
    "nvfp4": _Case("NVFP4 (inputs too: not compared)", "NVFP4_DEFAULT_CFG"),
    "nvfp4-weights": _Case("NVFP4", "W4A16_NVFP4_CFG"),
    "nvfp4-mlp": _Case("NVFP4 in groups of 32, attention left out", "NVFP4_MLP_WEIGHT_ONLY_CFG"),
    "mxfp8": _Case("MXFP8 (inputs too: not compared)", "MXFP8_DEFAULT_CFG"),
    "mix": _Case("FP8 and NVFP4 by layer", "FP8_DEFAULT_CFG", _FOURS),
}


@torch.inference_mode()
def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what ModelOpt makes of it."""
    case = CASES[name]
    config = copy.deepcopy(getattr(mtq, case.config))
    config["quant_cfg"] += copy.deepcopy(case.beside)
    model: Any = mtq.quantize(small_llama(torch.bfloat16), config, _calibrate)
    rounded = _rounded(model) if case.rounds else {}
    export_hf_checkpoint(model, export_dir=folder)
    keep_files(folder)
    tensors = load_file(folder / TENSORS)
    stored = [each for each in KEPT if each + ".weight_scale" in tensors]
    oracle = {each + DENSE: _dense(tensors, each) for each in stored}
    if rounded:
        oracle |= rounded
        oracle[_DOWN + OUTPUTS] = linear(rounded[_DOWN + ROUNDED], oracle[_DOWN + DENSE])
    reader = "modelopt.torch.quantization.qtensor"
    about = About(library=f"ModelOpt {modelopt.__version__}", reader=reader, what=case.what)
    write_oracle(folder, about, oracle)


def _calibrate(model: torch.nn.Module) -> None:
    for ids in calibration():
        model(ids)


def _rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    down: Any = model.get_submodule(_DOWN)
    inputs = some_inputs(down.in_features)
    rows = [down.input_quantizer(row.view(1, 1, -1))[0] for row in inputs]
    return {_DOWN + INPUTS: inputs, _DOWN + ROUNDED: torch.cat(rows)}


def _dense(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """The weight in float32, by the type of tensor that ModelOpt packs it in."""
    codes, scale = tensors[module + ".weight"], tensors[module + ".weight_scale"]
    factor = tensors.get(module + ".weight_scale_2")
    if factor is not None:
        shape = torch.Size((len(codes), 2 * codes.shape[1]))
        group = shape[1] // scale.shape[1]
        own = NVFP4QTensor(shape, torch.float32, codes)
        return own.dequantize(scale=scale, double_scale=factor, block_sizes={-1: group})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(scale=scale)
    blocks = {} if scale.ndim == 0 else {0: 1, 1: codes.shape[1]}
    scale = scale if scale.ndim == 0 else scale[:, None]
    own = FP8QTensor(codes.shape, torch.float32, codes)
    return own.dequantize(scale=scale, block_sizes=blocks)
