"""8-bit floats in blocks, in matrices and in rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from torch import Tensor

MOST = 448.0


@dataclass(frozen=True)
class Fp8:
    """DeepSeek's and Qwen's; without a block one scale for a matrix, and for all inputs."""

    block: int | None = 64

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        own: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3"}
        if self.block is None:
            return {**own, "activation_scheme": "static"}
        return {**own, "activation_scheme": "dynamic", "weight_block_size": [self.block] * 2}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        if self.block is None:
            scale = weight.abs().max() / MOST
            codes = (weight / scale).to(torch.float8_e4m3fn)
            tensors = {".weight": codes, ".weight_scale": scale, ".input_scale": STATIC_SCALE}
            return Written(tensors, codes.float() * scale)
        rows, columns = (-(-size // self.block) for size in weight.shape)
        scales = torch.empty(rows, columns)
        codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        dense = torch.empty(weight.shape)
        for row in range(rows):
            for column in range(columns):
                at = (_range(row, self.block), _range(column, self.block))
                scales[row, column] = scale = weight[at].abs().max() / MOST
                codes[at] = (weight[at] / scale).to(torch.float8_e4m3fn)
                dense[at] = codes[at].float() * scale
        return Written({".weight": codes, ".weight_scale_inv": scales}, dense)

    def round_inputs(self, x: Tensor) -> Tensor:
        """What float32 inputs [..., columns] are rounded to."""
        if self.block is None:
            scaled = (x / STATIC_SCALE).clamp(-MOST, MOST)
            return scaled.to(torch.float8_e4m3fn).float() * STATIC_SCALE
        parts = [round_rows(part) for part in x.split(self.block, dim=-1)]
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True)
class Fbgemm:
    """FBGEMM's: a scale for each row, and a bound for the magnitude of inputs."""

    bound: float = 4.0

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        return {"quant_method": "fbgemm_fp8", "activation_scale_ub": self.bound}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        scales = weight.abs().amax(1, keepdim=True) / MOST
        codes = (weight / scales).to(torch.float8_e4m3fn)
        bound = torch.tensor([self.bound])
        tensors = {".weight": codes, ".weight_scale": scales, ".input_scale_ub": bound}
        return Written(tensors, codes.float() * scales)

    def round_inputs(self, x: Tensor) -> Tensor:
        """What float32 inputs [..., columns] are rounded to."""
        return round_rows(x, most=self.bound)


STATIC_SCALE = torch.tensor(0.02)


def round_rows(x: Tensor, most: float = float("inf")) -> Tensor:
    """Rows as 8-bit floats with a scale each."""
    scale = x.abs().amax(-1, keepdim=True).clamp(max=most) / MOST
    scale = torch.where(scale == 0, 1.0, scale)
    return (x / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn).float() * scale


def _range(number: int, size: int) -> slice:
    return slice(number * size, (number + 1) * size)
