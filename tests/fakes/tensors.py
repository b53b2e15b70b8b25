"""Random tensors: drawn on the host, so that every device gets the same."""

from __future__ import annotations

import torch


def random(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int | torch.Generator = 0
) -> torch.Tensor:
    """Normally distributed, on the default device."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device="cpu")
    return drawn.to(torch.get_default_device(), dtype)
