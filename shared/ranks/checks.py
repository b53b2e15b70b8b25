"""What every `Collective` refuses before it does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: What is added up.
SUMMED = (torch.float32, torch.bfloat16, torch.float16)


def require_summed(tensor: Tensor) -> None:
    """Raise ValueError if a tensor's numbers are not added up here."""
    if tensor.dtype not in SUMMED:
        raise ValueError(f"all_reduce is for float32, bfloat16, float16; not {tensor.dtype}")


def require_source(source: int, size: int) -> None:
    """Raise ValueError if `source` is none of the ranks."""
    if not 0 <= source < size:
        raise ValueError(f"source {source} is none of {size} ranks")
