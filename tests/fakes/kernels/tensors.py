"""Random tensors, drawn on the host, so that every device gets the same; and their comparison."""

from __future__ import annotations

import torch


def random(
    *shape: int, dtype: torch.dtype = torch.float32, seed: int | torch.Generator = 0
) -> torch.Tensor:
    """Normally distributed, on the default device."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device="cpu")
    return drawn.to(torch.get_default_device(), dtype)


def assert_near(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    *,
    rtol: float,
    atol: float,
    equal_nan: bool = False,
) -> None:
    """Fail as `torch.testing.assert_close` does, which imports a second of PyTorch for it."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    is_near = ours.isclose(theirs, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if not is_near.all():
        num, most = int((~is_near).sum()), (ours.double() - theirs.double()).abs().max()
        raise AssertionError(f"{num} of {ours.numel()} numbers differ, one by {most:.3g}")
