"""Checkpoints of torchao, quantised and saved by transformers, and read by both."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torchao
from torchao import quantization as ao
from transformers import AutoModelForCausalLM, TorchAoConfig

from tests.oracles.base import DENSE, KEPT, About, keep_files, write_oracle
from tests.oracles.models import small_llama

if TYPE_CHECKING:
    from pathlib import Path

_GROUPS = ao.PerGroup(32)


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    config: Any
    dtype: torch.dtype = torch.bfloat16


CASES = {
    "int8": _Case("INT8 by row", ao.Int8WeightOnlyConfig()),
    "int8-groups": _Case(
        "INT8 in groups of 32, float32", ao.Int8WeightOnlyConfig(granularity=_GROUPS), torch.float32
    ),
    "int4": _Case(
        "INT4 in groups of 32",
        ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=_GROUPS),
    ),
    "int4-uneven": _Case(
        "INT4 in groups of 32 with zeros",
        ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=_GROUPS, mapping_type=ao.MappingType.ASYMMETRIC
        ),
    ),
    "int3": _Case(
        "INT3 by row, float32",
        ao.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=ao.PerAxis(0)),
        torch.float32,
    ),
    "fp8": _Case("FP8 by row", ao.Float8WeightOnlyConfig()),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what torchao makes of it."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as source:
        small_llama(case.dtype, inner=96, hidden=64).save_pretrained(source)
        AutoModelForCausalLM.from_pretrained(
            source, quantization_config=TorchAoConfig(quant_type=case.config), dtype=case.dtype
        ).save_pretrained(folder)
    read: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=case.dtype)
    keep_files(folder)
    weights = {each: read.get_submodule(each).weight for each in KEPT}
    kind = type(next(iter(weights.values())))
    about = About(
        library=f"torchao {torchao.__version__}",
        reader=f"torchao.quantization.{kind.__name__}.dequantize",
        what=case.what,
    )
    write_oracle(folder, about, {each + DENSE: own.dequantize() for each, own in weights.items()})
