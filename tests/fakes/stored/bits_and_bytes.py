"""What bitsandbytes saves, plainly: the library is large, and few machines have it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK, _NESTED_BLOCK = 64, 256
#: Any sixteen will do: the file has them.
_TABLE = torch.tensor(
    [
        -1.0,
        -0.7,
        -0.53,
        -0.39,
        -0.28,
        -0.18,
        -0.09,
        0.0,
        0.08,
        0.16,
        0.25,
        0.34,
        0.44,
        0.56,
        0.72,
        1.0,
    ]
)
_NESTED_TABLE = torch.linspace(-1, 1, 256)


@dataclass(frozen=True)
class Fours:
    """Two numbers in a byte, a scale for 64 of them; nested scales have 8 bits."""

    kind: str = "nf4"
    is_nested: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": self.kind,
            "bnb_4bit_use_double_quant": self.is_nested,
            "llm_int8_enable_fp32_cpu_offload": False,
            "llm_int8_has_fp16_weight": False,
            "llm_int8_skip_modules": None,
            "llm_int8_threshold": 6.0,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "quant_method": "bitsandbytes",
        }

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        blocks = weight.reshape(-1, _BLOCK)
        scales = blocks.abs().amax(1)
        state = {
            "quant_type": self.kind,
            "blocksize": _BLOCK,
            "dtype": "float32",
            "shape": list(weight.shape),
        }
        stored: dict[str, Tensor] = {".weight.absmax": scales}
        if self.is_nested:
            offset = float(scales.mean())
            stored, scales = _nested(scales, offset)
            more = {"nested_blocksize": _NESTED_BLOCK, "nested_dtype": "float32"}
            state |= {**more, "nested_offset": offset}
        codes = (blocks / scales[:, None]).unsqueeze(-1).sub(_TABLE).abs().argmin(-1)
        pairs = codes.flatten().view(-1, 2)
        text = json.dumps(state).encode()
        stored |= {
            ".weight": (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8),
            ".weight.quant_map": _TABLE,
            f".weight.quant_state.bitsandbytes__{self.kind}": torch.tensor(
                list(text), dtype=torch.uint8
            ),
        }
        return Written(stored, (_TABLE[codes] * scales[:, None]).view(weight.shape))


def _nested(scales: Tensor, offset: float) -> tuple[dict[str, Tensor], Tensor]:
    """How scales are stored, and what they are then."""
    centred = scales - offset
    peaks = torch.stack([part.abs().max() for part in centred.split(_NESTED_BLOCK)])
    wide = peaks.repeat_interleave(_NESTED_BLOCK)[: len(scales)]
    places = ((centred / wide)[:, None] - _NESTED_TABLE).abs().argmin(-1)
    stored = {
        ".weight.absmax": places.to(torch.uint8),
        ".weight.nested_absmax": peaks,
        ".weight.nested_quant_map": _NESTED_TABLE,
    }
    return stored, _NESTED_TABLE[places] * wide + offset


@dataclass(frozen=True)
class Eights:
    """Codes of 8 bits, with a scale for each row."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {**Fours().config, "load_in_4bit": False, "load_in_8bit": True}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        rows = weight.abs().amax(1)
        codes = (weight / rows[:, None] * 127).round().to(torch.int8)
        order = torch.tensor(0, dtype=torch.uint8)
        stored = {".weight": codes, ".SCB": rows, ".weight_format": order}
        return Written(stored, codes.float() * (rows / 127)[:, None])
