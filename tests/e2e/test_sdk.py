"""The SDK against a running cluster: the same tokens, typed results, cancellation that arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from baton_client import AsyncBaton, Baton, InvalidRequestError, ModelNotFoundError
from tests.e2e.asking import prompt_of
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster


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
