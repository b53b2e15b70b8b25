"""What comes out of drawn drafts has the model's distribution, whatever they were drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.sampling.drawing import Filters
from kernels.sampling.reference import kept
from shared.engine.sampler.random import Purpose, uniforms
from shared.engine.step.tokens.rejection import accept_drawn, distribution
from shared.request.sampling_params import SamplingParams

VOCAB = 8
#: Chi-square with 7 degrees of freedom is over this once in 10,000 times.
RARE = 29.9


def rows(seed: int, num: int, zeros: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.random((num, VOCAB)) ** 3
    for row in values:
        row[random.permutation(VOCAB)[:zeros]] = 0
    return values / values.sum(axis=-1, keepdims=True)


def draw_drafts(q: np.ndarray, params: SamplingParams, first: int) -> list[int]:
    num = len(q)
    numbers = uniforms(
        [params.fixed_seed] * num, [0] * num, range(first, first + num), Purpose.DRAFT
    )
    return [
        int(np.searchsorted(row.cumsum(), number * row.sum(), side="right"))
        for row, number in zip(q, numbers, strict=True)
    ]


@pytest.mark.parametrize(("zeros_p", "zeros_q"), [(0, 0), (3, 0), (4, 4)])
def test_the_distribution_is_the_models(zeros_p: int, zeros_q: int) -> None:
    """Of each position by itself, over many seeds; drafts of two, from another distribution."""
    num_positions, num_seeds = 3, 200
    p = rows(1, num_positions + 3, zeros_p)
    q = rows(2, num_positions + 3, zeros_q)
    counts = np.zeros((num_positions, VOCAB))
    num_accepted = 0
    for seed in range(num_seeds):
        params = SamplingParams(max_tokens=9, seed=seed)
        tokens: list[int] = []
        while len(tokens) < num_positions:
            first = len(tokens)
            drafts = draw_drafts(q[first : first + 2], params, first)
            target = p[first : first + 3]
            probs = torch.from_numpy(q[first : first + 2])
            new, num = accept_drawn(target, probs, drafts, params, first_position=first)
            assert new[:num] == drafts[:num]
            assert len(new) == num + 1
            tokens += new
            num_accepted += num
        for position in range(num_positions):
            counts[position, tokens[position]] += 1
    expected = num_seeds * p[:num_positions]
    assert not counts[expected == 0].any()
    chi_square = ((counts - expected) ** 2 / np.where(expected > 0, expected, 1)).sum(axis=-1)
    assert (chi_square < RARE).all()
    assert num_accepted > 0


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(0, 6))
def test_a_draft_from_the_same_distribution_is_always_right(
    seed: int, zeros: int, other: int
) -> None:
    params = SamplingParams(max_tokens=9, seed=seed)
    same = rows(seed, 3, zeros)
    drafts = draw_drafts(same[:2], params, 5)
    tokens, num = accept_drawn(same, torch.from_numpy(same[:2]), drafts, params, first_position=5)
    assert (num, tokens[:2]) == (2, drafts)
    # And one that the model never says is always wrong.
    never = rows(other, 1)[0]
    never[drafts[0]] = 0
    target = np.stack([never / never.sum(), same[1], same[2]])
    tokens, num = accept_drawn(target, torch.from_numpy(same[:2]), drafts, params, first_position=5)
    assert num == 0
    assert len(tokens) == 1
    assert target[0, tokens[0]] > 0


def test_where_nothing_can_be_chosen_it_ends() -> None:
    params = SamplingParams(max_tokens=9, seed=0)
    one = np.zeros((1, VOCAB))
    one[0, 3] = 1
    nothing = np.zeros((1, VOCAB))
    probs = torch.from_numpy(np.concatenate([one, one]))
    for target, expected in (
        ([nothing, one, one], ([], 0)),
        ([one, nothing, one], ([3], 1)),
        ([one, one, nothing], ([3, 3], 2)),
        ([one, one, one], ([3, 3, 3], 2)),
    ):
        assert (
            accept_drawn(np.concatenate(target), probs, [3, 3], params, first_position=0)
            == expected
        )


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1.0, 0.7]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_probabilities_are_those_that_sampling_uses(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(seed))
    logits[1] = float("-inf")
    params = SamplingParams(
        max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    probs = distribution(logits.clone(), params)
    scaled = logits[0].double() / temperature
    filters = Filters(
        temperature=torch.tensor([temperature]),
        top_k=torch.tensor([top_k]),
        top_p=torch.tensor([top_p]),
        min_p=torch.tensor([min_p]),
    )
    weights = scaled.softmax(dim=-1) * kept(scaled, filters, 0)
    np.testing.assert_allclose(probs[0], (weights / weights.sum()).numpy(), rtol=1e-5)
    assert not probs[1].any()
