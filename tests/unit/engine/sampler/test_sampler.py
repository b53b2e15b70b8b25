"""The sampler against a reference in plain numpy, and against the distribution it should have."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.sampling.drawing import relative_weights
from kernels.sampling.filters import min_p_floor, top_k_floor, top_p_floor
from shared.engine.sampler.logprobs import position_logprobs
from shared.engine.sampler.sampler import sample
from shared.engine.sampler.sampling_state import SamplingState
from shared.request.grammar.spec import Thinking
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget
from tests.unit.engine.sampler import reference

VOCAB = 50
PROMPT = [3, 3, 9, 41]
OUTPUT = [9, 7, 7, 30]


def make_state(
    prompt: list[int] = PROMPT, output: list[int] = OUTPUT, **fields: Any
) -> SamplingState:
    params = SamplingParams(**({"max_tokens": 100, "seed": 0} | fields))
    return SamplingState(params, array("q", [*prompt, *output]), len(prompt))


def random_logits(num_rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * 3


def budget(max_tokens: int, begin: int, end: int, *, is_open: bool) -> ThinkingBudget:
    thinking = Thinking(begin_token_id=begin, end_token_id=end, is_open=is_open)
    return ThinkingBudget(max_tokens=max_tokens, thinking=thinking)


EACH_PARAMETER: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 9e-6},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 8, "top_p": 0.7, "min_p": 0.01, "temperature": 1.3},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5, "temperature": 0.0},
    {"presence_penalty": 2.0},
    {"presence_penalty": -2.0, "temperature": 0.0},
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -2.0, "temperature": 0.0},
    {"repetition_penalty": 1.2, "presence_penalty": 0.7, "frequency_penalty": -0.4},
    {"logit_bias": {4: 100.0}},
    {"logit_bias": {4: 3.0, 5: -100.0}},
    {"allowed_token_ids": (1, 2, 3)},
    {"allowed_token_ids": (8,), "temperature": 0.0},
    {"bad_words_token_ids": ((2,), (7, 30, 11), (30, 12), (9, 13))},
    {"min_tokens": 5, "stop_token_ids": (0, 1, 2, 3, 4, 5, 6, 7), "eos_token_ids": (8, 9)},
    {"min_tokens": 4, "stop_token_ids": (0, 1, 2, 3, 4, 5, 6, 7)},
    {"min_tokens": 9, "eos_token_ids": (5, 70), "ignore_eos": True},
    {"min_tokens": 9, "eos_token_ids": (5, 70)},
    *(
        {
            "thinking_budget": budget(num, begin, end, is_open=is_open),
            "bad_words_token_ids": ((2,),),
        }
        for num in (0, 3, 4, 5)
        for begin, end in ((9, 2), (7, 2), (9, 7))
        for is_open in (False, True)
    ),
]


@pytest.mark.parametrize("fields", EACH_PARAMETER, ids=str)
def test_each_parameter_like_the_reference(fields: dict[str, Any]) -> None:
    logits = random_logits(40)
    states = [make_state(seed=i, **fields) for i in range(40)]
    reachable = [s for s in states if s.final_token_ids != [5, 70]]
    expected = [
        reference.sample(row, state.params, PROMPT, OUTPUT)
        for row, state in zip(logits.numpy().copy(), reachable, strict=False)
    ]
    sampled = [result.token_id for result in sample(logits.clone(), states)]
    if reachable:
        assert sampled == expected
    else:
        assert 5 not in sampled


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    fields = [f for f in EACH_PARAMETER for _ in range(3)]
    logits = random_logits(len(fields))
    states = [make_state(seed=i, logprobs=i % 3, **f) for i, f in enumerate(fields)]
    together = sample(logits.clone(), states)
    alone = [sample(logits[i : i + 1].clone(), [state])[0] for i, state in enumerate(states)]
    assert together == alone


fields_of_any_kind = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.2, 1.0, 1.8]),
        "top_k": st.integers(0, 60),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(0.0, 0.9),
        "repetition_penalty": st.floats(0.3, 2.0),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "min_tokens": st.integers(0, 10),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4).map(tuple),
        "logit_bias": st.dictionaries(st.integers(0, 49), st.floats(-5, 5), max_size=4),
        "seed": st.integers(0, 2**64 - 1),
    },
)
tokens = st.lists(st.integers(0, 49), max_size=12)


@given(fields_of_any_kind, tokens, tokens, st.integers(0, 1000))
def test_any_combination_draws_from_the_references_distribution(
    fields: dict[str, Any], prompt: list[int], output: list[int], seed: int
) -> None:
    logits = random_logits(1, seed=seed)
    state = make_state(prompt, output, **fields)
    (result,) = sample(logits.clone(), [state])
    assert result.token_id is not None
    row = reference.processed(logits[0].numpy(), state.params, prompt, output)
    if state.params.is_greedy:
        assert row[result.token_id] == pytest.approx(row.max(), abs=1e-5)
    else:
        # A threshold may fall on either side of a token in another precision, never far off.
        wider = {"top_p": min(1.0, state.params.top_p + 1e-4), "min_p": state.params.min_p * 0.999}
        params = SamplingParams(**({"max_tokens": 100, "seed": 0} | fields | wider))
        assert reference.distribution(row, params)[result.token_id] > 0


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.5}], ids=str
)
def test_frequencies_follow_the_distribution(fields: dict[str, Any]) -> None:
    num, vocab = 4000, 8
    logits = random_logits(1, vocab, seed=2) / 2
    states = [make_state([1] * (i + 1), [], seed=77, **fields) for i in range(num)]
    sampled = [result.token_id for result in sample(logits.repeat(num, 1), states)]
    expected = reference.distribution(logits[0].numpy(), states[0].params) * num
    counts = np.bincount(np.array(sampled), minlength=vocab)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < 29.9  # 99.99 %, 7 degrees


def test_ties_are_kept_or_cut_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    none = torch.full((1, 1), -torch.inf)
    assert top_k_floor(logits, torch.tensor([2])).tolist() == [[1.0]]
    assert top_p_floor(logits, relative_weights(logits), torch.tensor([0.6]), none).tolist() == [
        [1.0]
    ]


def test_filters_leave_rows_alone_that_do_not_use_them() -> None:
    logits = random_logits(3)
    none = torch.full((3, 1), -torch.inf)
    assert torch.equal(top_k_floor(logits, torch.tensor([0, VOCAB, 2 * VOCAB])), none)
    assert torch.equal(top_p_floor(logits, relative_weights(logits), torch.ones(3), none), none)
    assert torch.equal(min_p_floor(logits, torch.zeros(3)), none)


@pytest.mark.parametrize("top_k", [0, 300])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.9999])
def test_a_nucleus_wider_than_the_first_candidates(top_p: float, top_k: int) -> None:
    logits = random_logits(2, 5000) / 6
    params = SamplingParams(max_tokens=1, seed=0, top_p=top_p, top_k=top_k)
    expected = [reference.distribution(row, params) > 0 for row in logits.numpy()]
    floor = top_k_floor(logits, torch.tensor([top_k, top_k]))
    floor = top_p_floor(logits, relative_weights(logits), torch.tensor([top_p, top_p]), floor)
    differing = ((logits >= floor).numpy() != np.stack(expected)).sum()
    assert differing <= 2  # a token on the edge, in another precision


def test_raw_logprobs_know_nothing_of_penalties() -> None:
    logits = random_logits(2)
    raw = logits.log_softmax(dim=-1)
    states = [
        make_state(temperature=0.0, logprobs=3, logit_bias={17: 90.0}),
        make_state(temperature=0.0, logprobs=0),
    ]
    first, second = sample(logits, states)
    assert first.token_id == 17
    assert first.logprobs is not None
    assert first.logprobs.chosen.logprob == pytest.approx(float(raw[0, 17]))
    assert first.logprobs.chosen.rank == int((raw[0] > raw[0, 17]).sum()) + 1
    assert [t.token_id for t in first.logprobs.top] == raw[0].topk(3).indices.tolist()
    assert second.logprobs is not None
    assert second.logprobs.top == ()


@pytest.mark.parametrize("mode", LogprobsMode)
@pytest.mark.parametrize(
    "fields", [each for each in EACH_PARAMETER if each.get("eos_token_ids") != (5, 70)], ids=str
)
def test_numbers_are_of_the_mode(mode: LogprobsMode, fields: dict[str, Any]) -> None:
    logits = random_logits(2)
    wanted = fields | {"logprobs": VOCAB, "logprobs_mode": mode}
    state = make_state(**wanted)
    expected = logits[0].numpy().copy()
    if mode.is_processed:
        expected = reference.processed(expected, state.params, PROMPT, OUTPUT)
        if not state.params.is_greedy:
            expected = reference.filtered(expected, state.params)
    if not mode.is_logits:
        with np.errstate(divide="ignore"):
            expected = np.log(reference.softmax(expected.astype(np.float64)))
    neighbour = make_state(logprobs=1, logit_bias={3: 5.0})
    plain, beside = sample(logits.clone(), [make_state(**fields), neighbour])
    sampled, again = sample(logits, [state, neighbour])
    assert sampled.token_id == plain.token_id
    assert again == beside
    assert sampled.logprobs is not None
    found = {each.token_id: each.logprob for each in sampled.logprobs.top}
    assert found == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-4)
    ranks = {each.token_id: each.rank for each in sampled.logprobs.top}
    assert sampled.logprobs.chosen.rank == ranks[sampled.logprobs.chosen.token_id]


def test_named_tokens_replace_the_most_likely_ones() -> None:
    logits = random_logits(3)
    raw = logits.log_softmax(dim=-1)
    states = [
        make_state(temperature=0.0, logprobs=2),
        make_state(temperature=0.0, logprobs=1, logprob_token_ids=(30, 4, 17), logit_bias={4: 9.0}),
        make_state(temperature=0.0),
    ]
    first, second, third = sample(logits, states)
    assert third.logprobs is None
    assert first.logprobs is not None
    assert [t.token_id for t in first.logprobs.top] == raw[0].topk(2).indices.tolist()
    assert second.logprobs is not None
    assert second.logprobs.chosen.token_id == second.token_id
    assert [t.token_id for t in second.logprobs.top] == [30, 4, 17]
    for token in second.logprobs.top:
        assert token.logprob == pytest.approx(float(raw[1, token.token_id]))
        assert token.rank == int((raw[1] > raw[1, token.token_id]).sum()) + 1


def test_equally_likely_tokens_share_a_rank() -> None:
    logprobs = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()
    (record,) = position_logprobs(logprobs, [2], [4])
    assert record.chosen.rank == 2
    assert [t.rank for t in record.top] == [1, 2, 2, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_unusable_logits_give_no_token(bad: float) -> None:
    logits = random_logits(3)
    logits[1] = bad
    states = [make_state(), make_state(logprobs=1), make_state(temperature=0.0)]
    results = [result.token_id for result in sample(logits, states)]
    assert results[1] is None
    assert None not in (results[0], results[2])


def test_half_precision_is_sampled_in_full() -> None:
    logits = random_logits(4).bfloat16()
    states = [make_state(seed=i) for i in range(4)]
    assert sample(logits.clone(), states) == sample(logits.float(), states)
