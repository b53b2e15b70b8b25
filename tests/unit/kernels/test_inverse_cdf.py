"""Inverting the cumulative distribution, over pieces of the vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.sampling.drawing import relative_weights
from kernels.sampling.inverse_cdf import invert


def whole(logits: torch.Tensor, numbers: torch.Tensor) -> list[int]:
    """The definition, in double precision."""
    weights = np.exp(logits.double().numpy())
    cumulative = np.cumsum(weights, axis=-1)
    return [
        int(np.searchsorted(row, number * row[-1], side="right"))
        for row, number in zip(cumulative, numbers.tolist(), strict=True)
    ]


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 512, 1000, 5003])
def test_like_the_definition(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(500, vocab_size, generator=generator) * 2
    numbers = torch.rand(500, generator=generator, dtype=torch.float64)
    found = invert(relative_weights(logits), numbers).tolist()
    differing = sum(a != b for a, b in zip(found, whole(logits, numbers), strict=True))
    assert differing <= 2  # a number on the edge between two tokens, in another precision


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("only", [0, 255, 256, 700, 999])
def test_never_a_token_that_is_ruled_out(number: float, only: int) -> None:
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, only] = -50.0
    assert invert(
        relative_weights(logits), torch.tensor([number], dtype=torch.float64)
    ).tolist() == [only]


def test_the_ends_of_the_interval() -> None:
    logits = torch.full((2, 600), float("-inf"))
    logits[:, 100:500] = 0.0
    numbers = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert invert(relative_weights(logits), numbers).tolist() == [100, 499]
