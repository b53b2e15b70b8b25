"""Experts of gpt-oss in MXFP4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from torch import Tensor

_GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_GROUP = 32


@dataclass(frozen=True)
class GptOss:
    """All experts of a layer in a tensor [experts, columns, rows]."""

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        groups = weight.transpose(1, 2).unflatten(-1, (-1, _GROUP))
        exponents = (groups.abs().amax(-1) / 6).log2().ceil()
        scaled = groups / torch.exp2(exponents).unsqueeze(-1)
        nearest = (scaled.abs().unsqueeze(-1) - _GRID).abs().argmin(-1)
        codes = nearest + 8 * (scaled < 0)
        values = torch.where(scaled < 0, -_GRID[nearest], _GRID[nearest])
        dense = (values * torch.exp2(exponents).unsqueeze(-1)).flatten(-2).transpose(1, 2)
        blocks = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        scales = (exponents + 127).to(torch.uint8)
        return Written({"_blocks": blocks, "_scales": scales}, dense.contiguous())
