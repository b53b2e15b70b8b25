"""Choosing tokens: PyTorch in this process, Triton in an interpreter of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native.library import load_library
from kernels.sampling import choose_tokens, native
from kernels.sampling.selection import weighted_threshold
from shared.engine.sampler.random import Purpose, uniforms
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.kernels.tensors import random
from tests.suites.kernels.sampling import checks, make_filters, numbers_for
from tests.suites.kernels.sampling import interpreted as interpreted_checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

CHECKS = checks("torch", num_draws=6000)
NATIVE_CHECKS = checks("native", num_draws=6000)


@pytest.mark.parametrize("name", CHECKS)
def test_torch_chooses_as_defined(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", NATIVE_CHECKS)
def test_the_library_chooses_as_defined(name: str) -> None:
    NATIVE_CHECKS[name]()


def test_threads_and_extreme_temperatures_change_nothing_else() -> None:
    library = load_library()
    pool = library.baton_pool_new(2, None, 0)
    logits = random(9, 3001) * 4
    logits[4, 7:] = float("-inf")
    choices = np.zeros(9, native.ROW_CHOICE)
    choices["number"] = numbers_for(9)
    choices["temperature"] = [1.0, 0.0, 1e-30, 1e30, 1e30, 0.5, 1.0, 1.0, 1.0]
    choices["top_p"] = [1.0, 1.0, 0.5, 0.9, 0.9, 0.3, 1e-9, 0.99999, 1.0]
    choices["top_k"] = [0, 0, 0, 40, 0, 2900, 0, 0, 1]
    together = native.choose_rows(logits, choices, pool)
    library.baton_pool_delete(pool)
    alone = [
        native.choose_rows(logits[row : row + 1], choices[row : row + 1], None)[0]
        for row in range(9)
    ]
    assert together.tolist() == alone
    best = logits.argmax(dim=-1)
    assert together[[1, 2, 6, 8]].tolist() == best[[1, 2, 6, 8]].tolist()
    assert together[4] < 7


@given(
    seed=st.integers(0, 2**64 - 1),
    sample_index=st.integers(0, 2**31),
    position=st.integers(0, 2**31),
    purpose=st.sampled_from(Purpose),
)
def test_the_library_draws_the_same_numbers(
    seed: int, sample_index: int, position: int, purpose: Purpose
) -> None:
    draws = np.array([(seed, sample_index, purpose)], native.ROW_DRAW)
    own = native.draw_uniforms(draws, np.array([position], np.uint32))
    assert own == uniforms([seed], [sample_index], [position], purpose)


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.sampling")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", interpreted_checks())
def test_triton_chooses_as_defined(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def sorted_threshold(
    values: NDArray[np.float32], weights: NDArray[np.float32], target: float
) -> float:
    order = np.argsort(values)[::-1]
    reached = weights[order].cumsum(dtype=np.float64)
    return float(values[order[min(int(np.searchsorted(reached, target)), len(order) - 1)]])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 20000),
    spread=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    decimals=st.sampled_from([0, 1, 7]),  # few distinct values, some, nearly all distinct
    share=st.floats(0.0, 1.0),
)
def test_selection_finds_what_sorting_finds(
    seed: int, size: int, spread: float, decimals: int, share: float
) -> None:
    generator = np.random.default_rng(seed)
    values = (generator.standard_normal(size) * spread).round(decimals).astype(np.float32)
    # Weights that float32 sums without rounding, and that know nothing of the values.
    weights = generator.integers(0, 50, size).astype(np.float32)
    total = float(weights.sum())
    target = max(round(share * total), 1.0)
    expected = sorted_threshold(values, weights, target)
    assert weighted_threshold(values, weights, total, target) == expected


def test_selection_from_a_misleading_sample() -> None:
    values = np.zeros(5120, dtype=np.float32)
    values[1::10] = 1.0  # a stride of 10 sees none of them
    weights = np.ones_like(values)
    assert weighted_threshold(values, weights, 5120.0, 512.0) == 1.0
    assert weighted_threshold(values, weights, 5120.0, 513.0) == 0.0


def test_what_does_not_fit_is_refused() -> None:
    logits, filters = torch.ones(2, 4), make_filters([{}] * 2)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        choose_tokens(logits, numbers_for(2), **filters, implementation="cuda")
    with pytest.raises(ValueError, match="must have one of 2 rows"):
        choose_tokens(logits, numbers_for(3), **filters)
