"""I1, I8, I9, I16: router → prefill → decode answers as one engine would, token for token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from baton.v1 import common_pb2
from tests.e2e.asking import ask, ask_many, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

LENGTHS = [
    1,
    BLOCK_SIZE - 1,
    BLOCK_SIZE,
    BLOCK_SIZE + 1,
    5 * BLOCK_SIZE + 3,
    3 * MAX_NUM_BATCHED_TOKENS,
    3 * MAX_NUM_BATCHED_TOKENS + 5,
]


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_answers_are_equal(cluster: Cluster, oracle: LLM, length: int) -> None:
    prompt = prompt_of(length)
    reply = ask(cluster, prompt, max_tokens=40, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=40, temperature=0.0)
    assert reply.timings.prefill_worker == "prefill-0"
    assert reply.timings.connector
    cluster.wait_idle()


@pytest.mark.parametrize("shared", [BLOCK_SIZE, 4 * BLOCK_SIZE, 4 * BLOCK_SIZE + 7])
def test_answers_are_equal_after_prefix_hits(cluster: Cluster, oracle: LLM, shared: int) -> None:
    start = prompt_of(shared, seed=shared)
    ask(cluster, [*start, 5], max_tokens=2, temperature=0.0, ignore_eos=True)
    prompt = [*start, *prompt_of(50, seed=shared + 1)]
    reply = ask(cluster, prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=24, temperature=0.0)
    assert reply.usage.sources.local_hit == shared // BLOCK_SIZE * BLOCK_SIZE
    assert reply.usage.cached_tokens >= reply.usage.sources.local_hit


def test_a_prompt_that_is_all_cached_needs_no_prefill(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(6 * BLOCK_SIZE + 1, seed=77)
    want = expect(oracle, prompt, max_tokens=12, temperature=0.0)
    for _ in range(3):
        reply = ask(cluster, prompt, max_tokens=12, temperature=0.0, ignore_eos=True)
        assert reply.token_ids == want
    assert reply.usage.sources.local_hit == 6 * BLOCK_SIZE


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_seeded_answers_are_equal(cluster: Cluster, oracle: LLM, seed: int) -> None:
    prompt = prompt_of(45, seed=3)
    params = {"max_tokens": 32, "temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": seed}
    reply = ask(cluster, prompt, ignore_eos=True, **params)
    assert reply.token_ids == expect(oracle, prompt, **params)


def test_n_answers_are_those_of_one_engine(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(70, seed=4)
    params = {"max_tokens": 16, "temperature": 1.0, "seed": 11}
    replies = ask_many(cluster, prompt, n=3, ignore_eos=True, **params)
    wants = [expect(oracle, prompt, sample_index=index, **params) for index in range(3)]
    assert [reply.token_ids for reply in replies] == wants
    assert len(set(wants)) == 3
    usage = replies[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (70, 48)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.7},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"logit_bias": {9: 50.0}, "frequency_penalty": 2.0},
        {"min_p": 0.2, "temperature": 1.0, "seed": 5},
    ],
)
def test_parameters_apply_to_the_first_token_too(
    cluster: Cluster, oracle: LLM, params: dict[str, object]
) -> None:
    prompt = prompt_of(33, seed=6)
    merged = {"max_tokens": 20, "temperature": 0.0, **params}
    reply = ask(cluster, prompt, ignore_eos=True, **merged)
    assert reply.token_ids == expect(oracle, prompt, **merged)


def test_a_stop_token_as_the_first_token_ends_the_answer(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(40, seed=8)
    first = expect(oracle, prompt, max_tokens=1, temperature=0.0)[0]
    reply = ask(cluster, prompt, max_tokens=20, temperature=0.0, stop_token_ids=[first])
    assert reply.token_ids == (first,)
    assert reply.finish_reason == common_pb2.FINISH_REASON_STOP
    assert reply.usage.completion_tokens == 1
    cluster.wait_idle()


def test_min_tokens_holds_the_first_token_back(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(40, seed=8)
    first = expect(oracle, prompt, max_tokens=1, temperature=0.0)[0]
    params = {"max_tokens": 12, "temperature": 0.0, "stop_token_ids": [first], "min_tokens": 5}
    reply = ask(cluster, prompt, **params)
    want = expect(oracle, prompt, max_tokens=12, temperature=0.0, stop=(first,), min_tokens=5)
    assert reply.token_ids == want
    assert first not in reply.token_ids[:5]


def test_one_token_is_one_token(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(100, seed=9)
    reply = ask(cluster, prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=1, temperature=0.0)
    assert reply.finish_reason == common_pb2.FINISH_REASON_LENGTH
    cluster.wait_idle()


def test_logprobs_are_those_of_one_engine(cluster: Cluster, oracle: LLM) -> None:
    from tests.e2e.oracle import expect_logprobs

    prompt = prompt_of(50, seed=10)
    reply = ask(cluster, prompt, max_tokens=8, temperature=0.0, logprobs=3, ignore_eos=True)
    want = expect_logprobs(oracle, prompt, max_tokens=8, num_top=3)
    assert len(reply.details) == len(want) == 8
    for detail, position in zip(reply.details, want, strict=True):
        got = [(c.token_id, c.rank) for c in (detail.logprobs.chosen, *detail.logprobs.top)]
        assert got == [(c.token_id, c.rank) for c in (position.chosen, *position.top)]
        assert detail.logprobs.chosen.logprob == pytest.approx(position.chosen.logprob, abs=1e-4)
    ids = common_pb2.TokenIds(ids=[c.token_id for c in reversed(want[0].top)])
    named = ask(
        cluster, prompt, max_tokens=8, temperature=0.0, logprobs=0, logprob_token_ids=ids,
        ignore_eos=True,
    )  # fmt: skip
    assert all([c.token_id for c in d.logprobs.top] == list(ids.ids) for d in named.details)
    first = {c.token_id: c.logprob for c in named.details[0].logprobs.top}
    assert first == pytest.approx({c.token_id: c.logprob for c in want[0].top}, abs=1e-4)


def test_usage_adds_up(cluster: Cluster) -> None:
    prompt = prompt_of(90, seed=12)
    cold = ask(cluster, prompt, max_tokens=4, temperature=0.0, ignore_eos=True).usage
    assert (cold.prompt_tokens, cold.completion_tokens, cold.cached_tokens) == (90, 4, 0)
    assert cold.sources.transferred == 90
    warm = ask(cluster, prompt, max_tokens=4, temperature=0.0, ignore_eos=True).usage
    assert warm.cached_tokens == 90 // BLOCK_SIZE * BLOCK_SIZE
    for usage in (cold, warm):
        sources = usage.sources
        total = sources.computed + sources.local_hit + sources.transferred
        assert total == usage.prompt_tokens


def test_usage_adds_up_after_a_stop_string(cluster: Cluster) -> None:
    prompt = prompt_of(90, seed=14)
    params = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    text = ask(cluster, prompt, **params).text
    reply = ask(cluster, prompt, stop=[text[8:11]], **params)
    assert reply.finish_reason == common_pb2.FINISH_REASON_STOP
    assert reply.text == text[: text.index(text[8:11])]
    sources = reply.usage.sources
    assert sources.local_hit == 90 // BLOCK_SIZE * BLOCK_SIZE
    assert sources.computed + sources.local_hit + sources.transferred == 90
    assert reply.usage.completion_tokens == len(reply.token_ids)
    cluster.wait_idle()


def test_the_first_token_comes_by_itself(cluster: Cluster) -> None:
    reply = ask(cluster, prompt_of(60, seed=13), max_tokens=6, temperature=0.0, ignore_eos=True)
    assert 1 < reply.num_pieces <= 6  # later tokens may share a piece
    timings = reply.timings
    assert timings.prefill_ms > 0
    assert timings.transfer_bytes > 0
    assert 0 < timings.first_token_ms <= timings.total_ms
