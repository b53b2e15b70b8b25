"""The SDK against a running cluster: the same tokens, typed results, cancellation that arrives."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from baton_client import (
    AsyncBaton,
    Baton,
    FinishReason,
    InvalidRequestError,
    ModelNotFoundError,
    ToolCallBegin,
)
from tests.e2e.asking import ask, prompt_of
from tests.e2e.one_cluster import one_cluster
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton_client import ChatOptions, Tool
    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

pytestmark = one_cluster

WEATHER: Tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rom", "Paris"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def baton(cluster: Cluster) -> Iterator[Baton]:
    with Baton(f"127.0.0.1:{cluster.grpc_port}") as baton:
        yield baton


def test_generate_is_what_one_engine_answers(baton: Baton, oracle: LLM) -> None:
    prompt = prompt_of(75, seed=41)
    result = baton.generate(prompt, max_tokens=16, temperature=0.0, ignore_eos=True)
    assert result.answers[0].token_ids == expect(oracle, prompt, max_tokens=16, temperature=0.0)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (75, 16)
    assert result.timings.prefill_worker == "prefill-0"


def test_streamed_pieces_add_up(baton: Baton) -> None:
    params = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    whole = baton.chat("What is a baton?", **params)
    with baton.stream_chat("What is a baton?", **params) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(pieces) > 1


def test_a_tool_that_must_be_called_is_called(baton: Baton) -> None:
    """The model is random: what it calls comes from the grammar alone."""
    for seed in range(2):
        options: ChatOptions = {
            "tools": [WEATHER],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "seed": seed,
        }
        with baton.stream_chat("What is a baton?", **options) as stream:
            pieces = list(stream)
        begins = [d for piece in pieces for d in piece.deltas if isinstance(d, ToolCallBegin)]
        answer = baton.chat("What is a baton?", **options).answers[0]
        [call] = answer.tool_calls
        assert (call.name, answer.finish_reason) == ("get_weather", FinishReason.TOOL_CALLS)
        assert json.loads(call.arguments)["city"] in ("Rom", "Paris")
        assert [begin.name for begin in begins] == ["get_weather"]
        assert pieces[-1].finish_reason is FinishReason.TOOL_CALLS
        assert answer.content == ""


def test_answers_have_the_form_that_was_asked_for(baton: Baton) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"json": schema, "disable_any_whitespace": True}
    answer = baton.chat("Hi", structured_outputs=form, max_tokens=99)
    assert json.loads(answer.content)["a"] in (1, 2)
    chosen = baton.generate("Hi", structured_outputs={"choice": ["yes", "no"]}, max_tokens=9)
    assert chosen.text in ("yes", "no")


def test_arguments_reach_the_logits_processors(baton: Baton, oracle: LLM) -> None:
    prompt = prompt_of(20, seed=5)
    plain = baton.generate(prompt, max_tokens=24, temperature=0, ignore_eos=True)
    args = {"no_repeat": 8}
    changed = baton.generate(
        prompt, max_tokens=24, temperature=0, ignore_eos=True, extra_args=args,
        num_speculative_tokens=0,
    )  # fmt: skip
    [answer] = changed.answers
    assert answer.token_ids != plain.answers[0].token_ids
    assert answer.token_ids == expect(
        oracle, prompt, max_tokens=24, temperature=0.0, extra_args=args
    )


@pytest.mark.parametrize("seed", [-2, -(2**63), 2**64 - 5])
def test_a_seed_gives_the_same_tokens_by_every_door(
    baton: Baton, oracle: LLM, cluster: Cluster, seed: int
) -> None:
    """With a sign or without it, the same 64 bits; and a `top_k` of -1 is none."""
    prompt = prompt_of(20, seed=9)
    options = {"max_tokens": 16, "temperature": 1.5, "top_k": -1, "ignore_eos": True}
    expected = expect(
        oracle, prompt, seed=seed, **{k: v for k, v in options.items() if k != "ignore_eos"}
    )
    for same in (seed, seed % 2**64):
        assert baton.generate(prompt, seed=same, **options).answers[0].token_ids == expected
    text = baton.generate(prompt, seed=seed, **options).text
    body = {"model": cluster.model.name, "prompt": prompt, "seed": seed, **options}
    over_http = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).json()
    assert over_http["choices"][0]["text"] == text
    raw = ask(cluster, prompt, seed=seed % 2**64, **(options | {"top_k": 0}))
    assert raw.token_ids == expected
    assert baton.generate(prompt, seed=1, **options).answers[0].token_ids != expected


def test_models(baton: Baton, cluster: Cluster) -> None:
    (model,) = baton.models()
    assert model.id == cluster.model.name
    assert model.max_model_len == 2048


def test_errors_are_typed(baton: Baton) -> None:
    with pytest.raises(InvalidRequestError) as error:
        baton.generate("x", top_p=2.0)
    assert error.value.param == "top_p"
    with pytest.raises(ModelNotFoundError):
        baton.generate("x", model="another")


def test_leaving_a_stream_frees_everything(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncBaton(f"127.0.0.1:{cluster.grpc_port}") as baton:
            stream = baton.stream_generate(prompt_of(300, seed=42), max_tokens=1000, seed=1)
            async with stream:
                async for _ in stream:
                    break

    asyncio.run(run())
    cluster.wait_idle()
