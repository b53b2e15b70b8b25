"""What HQQ saves, plainly, without its search for better zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from tests.fakes.stored.base import Written

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hqq:
    """Groups of a row's neighbours, or with axis 0 of numbers at one place of parts of the rows."""

    bits: int = 4
    group: int = 32
    axis: int = 1

    @property
    def config(self) -> dict[str, Any]:
        """See `Writer.config`."""
        weights = {
            "nbits": self.bits,
            "channel_wise": True,
            "group_size": self.group,
            "optimize": True,
            "round_zero": self.bits == 4,
            "axis": self.axis,
            "view_as_float": False,
        }
        own = {
            "weight_quant_params": weights,
            "scale_quant_params": None,
            "zero_quant_params": None,
            "offload_meta": False,
        }
        return {"quant_method": "hqq", "quant_config": own, "skip_modules": ["lm_head"]}

    def write(self, weight: Tensor) -> Written:
        """See `Writer.write`."""
        shape = (-1, self.group) if self.axis == 1 else (self.group, -1)
        grouped = weight.reshape(shape)
        least, most = grouped.aminmax(dim=self.axis, keepdim=True)
        scales = (most - least) / (2**self.bits - 1)
        zeros = -least / scales
        codes = (grouped / scales + zeros).round().clamp(0, 2**self.bits - 1)
        tensors = {
            ".W_q": _packed(codes.int(), self.bits),
            ".scale": scales,
            ".zero": zeros,
            ".shape": torch.tensor(weight.shape),
            ".nbits": torch.tensor(self.bits, dtype=torch.int32),
            ".group_size": torch.tensor(self.group, dtype=torch.int32),
            ".axis": torch.tensor(self.axis, dtype=torch.int32),
            ".view_as_float": torch.tensor(0, dtype=torch.uint8),
            ".packing": torch.tensor(list(b"some_u8"), dtype=torch.uint8),
        }
        return Written(tensors, ((codes - zeros) * scales).view(weight.shape))


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Rows far apart in one word, the first in its highest bits."""
    in_word = 10 if bits == 3 else 8 // bits
    whole = pad(codes, (0, 0, 0, -len(codes) % in_word))
    words = torch.zeros_like(whole[: len(whole) // in_word])
    for part in whole.chunk(in_word):
        words = words << bits | part
    return words if bits == 3 else words.to(torch.uint8)
