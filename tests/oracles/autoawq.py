"""Checkpoints of AutoAWQ, packed by its quantiser and read by its function.

Its loops over whole models need an older transformers; what they do to each linear runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from awq.models._config import AwqConfig
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.packing_utils import dequantize_gemm

from tests.oracles.base import DENSE, KEPT, About, keep_files, write_oracle
from tests.oracles.models import small_llama

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Case:
    group: int
    sizes: dict[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


CASES = {
    "32": _Case(32, {"inner": 96, "hidden": 64}),
    "64": _Case(64, {"inner": 128, "hidden": 64}),
    "128": _Case(128, {"inner": 128}, ("self_attn", "gate_proj", "up_proj")),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what AutoAWQ makes of it."""
    case = CASES[name]
    model: Any = small_llama(torch.float16, **case.sizes)
    settings = AwqConfig(
        q_group_size=case.group, modules_to_not_convert=list(case.left_out) or None
    )
    layer = model.model.layers[0]
    linears = {
        path: module
        for path, module in layer.named_modules()
        if isinstance(module, torch.nn.Linear) and not any(part in path for part in case.left_out)
    }
    _quantizer(settings)._apply_quant(layer, linears)
    model.config.quantization_config = settings.to_transformers_dict()
    model.save_pretrained(folder)
    keep_files(folder)
    oracle: dict[str, torch.Tensor] = {}
    for each in KEPT:
        linear = model.get_submodule(each)
        if isinstance(linear, WQLinear_GEMM):
            own = (linear.qweight, linear.qzeros, linear.scales, linear.w_bit, linear.group_size)
            oracle[each + DENSE] = dequantize_gemm(*own).T
    about = About(
        library=f"AutoAWQ {version('autoawq')}",
        reader=f"{dequantize_gemm.__module__}.{dequantize_gemm.__name__}",
        what=f"4 bits in groups of {case.group} with zeros"
        + (", some layers left out" if case.left_out else ""),
    )
    write_oracle(folder, about, oracle)


def _quantizer(settings: AwqConfig) -> Any:
    """One without a model: only what it does to linears is asked for."""
    quantizer = object.__new__(AwqQuantizer)
    quantizer.w_bit = settings.w_bit
    quantizer.group_size = settings.q_group_size
    quantizer.zero_point = settings.zero_point
    quantizer.version = settings.version
    return quantizer
