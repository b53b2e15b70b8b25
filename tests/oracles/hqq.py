"""Checkpoints of HQQ, quantised, saved and read by its library, with the config of transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hqq
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.models.hf.base import AutoHQQHFModel
from safetensors.torch import load_file

from tests.oracles.base import DENSE, KEPT, TENSORS, About, keep_files, write_oracle
from tests.oracles.models import small_llama

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

_GROUP = 32


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    bits: int
    dtype: torch.dtype = torch.bfloat16
    axis: int = 1
    #: By tag; others are not quantised then.
    by_tag: Mapping[str, int] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The `quant_config`."""
        if self.by_tag:
            return {tag: self._of(bits) for tag, bits in self.by_tag.items()}
        return self._of(self.bits)

    def _of(self, bits: int) -> dict[str, Any]:
        own: dict[str, Any] = BaseQuantizeConfig(nbits=bits, group_size=_GROUP, axis=self.axis)
        return own


CASES = {
    "8": _Case("8 bits in groups of 32", 8),
    "6": _Case("6 bits in groups of 32, float32", 6, torch.float32),
    "4": _Case("4 bits in groups of 32", 4),
    "4-float16": _Case("4 bits in groups of 32, float16", 4, torch.float16),
    "4-rows": _Case("4 bits in groups of 32 across rows", 4, axis=0),
    "3": _Case("3 bits in groups of 32", 3),
    "3-rows": _Case("3 bits in groups of 32 across rows, float32", 3, torch.float32, axis=0),
    "2": _Case("2 bits in groups of 32", 2),
    "1-rows": _Case("1 bit in groups of 32 across rows, float16", 1, torch.float16, axis=0),
    "mix": _Case(
        "4 and 8 bits by layer, others left out",
        4,
        by_tag={"self_attn.k_proj": 4, "mlp.down_proj": 8, "self_attn.o_proj": 4},
    ),
}


def record(folder: Path, name: str) -> None:
    """Write one checkpoint with what the library makes of it."""
    case = CASES[name]
    model: Any = small_llama(case.dtype, inner=96, hidden=64)
    config = case.config
    AutoHQQHFModel.quantize_model(
        model, quant_config=config, compute_dtype=case.dtype, device="cpu"
    )
    model.config.quantization_config = {
        "quant_config": case.config,
        "quant_method": "hqq",
        "skip_modules": ["lm_head"],
    }
    AutoHQQHFModel.save_to_safetensors(model, str(folder))
    keep_files(folder)
    about = About(
        library=f"hqq {hqq.__version__}",
        reader="hqq.core.quantize.HQQLinear.dequantize",
        what=case.what,
    )
    tensors = load_file(folder / TENSORS)
    write_oracle(folder, about, {each + DENSE: _read(each, tensors, case.dtype) for each in KEPT})


def _read(module: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    own = HQQLinear(None, None, compute_dtype=dtype, device="cpu")
    begin = f"{module}."
    own.load_state_dict(
        {name.removeprefix(begin): each for name, each in tensors.items() if name.startswith(begin)}
    )
    dense: Tensor = own.dequantize()
    return dense
