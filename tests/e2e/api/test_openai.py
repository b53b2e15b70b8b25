"""The official openai client, unchanged, against a running cluster; and curl."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.e2e.asking import prompt_of
from tests.e2e.one_cluster import one_cluster
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

pytestmark = one_cluster

MESSAGES: Any = [{"role": "user", "content": "What is a baton?"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_models(client: openai.OpenAI, cluster: Cluster) -> None:
    (found,) = client.models.list().data
    assert found.id == cluster.model.name
    assert client.models.retrieve(found.id).id == found.id


def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_streamed_chat_says_the_same(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage is not None
    assert not chunks[-1].choices


def test_async_streams_interleave(cluster: Cluster, model: str) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> int:
        stream = await client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, seed=seed, max_tokens=8
        )
        return sum([bool(chunk.choices) async for chunk in stream])

    async def run() -> list[int]:
        url = f"{cluster.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(8)))

    assert all(count > 0 for count in asyncio.run(run()))


def test_completions_of_token_ids_are_those_of_one_engine(
    client: openai.OpenAI, model: str, oracle: LLM
) -> None:
    prompts = [prompt_of(20, seed=31), prompt_of(70, seed=32)]
    answer = client.completions.create(
        model=model,
        prompt=prompts,
        temperature=0.0,
        max_tokens=10,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    wants = [expect(oracle, prompt, max_tokens=10, temperature=0.0) for prompt in prompts]
    got = [tuple((choice.model_extra or {})["token_ids"]) for choice in answer.choices]
    assert got == wants


def test_completion_logprobs_and_echo(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="def main():", temperature=0.0, max_tokens=3, logprobs=2, echo=True
    )
    (choice,) = answer.choices
    assert choice.text.startswith("def main():")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None for value in choice.logprobs.token_logprobs[1:])


def test_n_and_stop(client: openai.OpenAI, model: str) -> None:
    plain = client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY)
    text = plain.choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, n=2, stop=[stop], **GREEDY
    )
    for choice in answer.choices:
        assert stop not in (choice.message.content or "")
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_parameters_are_named(
    client: openai.OpenAI, model: str, change: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": model, "messages": MESSAGES, **change})
    assert error.value.param == param


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=MESSAGES)


def test_a_client_that_goes_away_frees_everything(cluster: Cluster, model: str) -> None:
    body = {"model": model, "prompt": prompt_of(200, seed=33), "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    cluster.wait_idle()


def test_curl_streams(cluster: Cluster, model: str) -> None:
    body = {"model": model, "messages": MESSAGES, "stream": True, "max_tokens": 5}
    command = ["curl", "-sN", f"{cluster.url}/v1/chat/completions", "-d", json.dumps(body)]
    command += ["-H", "content-type: application/json"]
    output = subprocess.run(
        [*command, "-H", "content-type: application/json"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    lines = [line for line in output.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_a_chat_in_steps_of_tokens_is_the_chat(cluster: Cluster, model: str) -> None:
    body = {
        "model": model, "messages": MESSAGES, "temperature": 0.0, "max_tokens": 12,
        "ignore_eos": True, "return_token_ids": True, "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip
    with httpx.Client(base_url=cluster.url, timeout=30) as http:
        whole = http.post("/v1/chat/completions", json=body).json()
        rendered = http.post("/v1/chat/completions/render", json=body).json()
        assert rendered["token_ids"] == whole["prompt_token_ids"]
        tokens = http.post("/inference/v1/generate", json=rendered).json()
        assert tokens["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
        shown = {"generate_response": tokens, "chat_request": body}
        derendered = http.post("/v1/chat/completions/derender", json=shown).json()
    assert derendered["choices"][0]["message"] == whole["choices"][0]["message"]
    expected = whole["choices"][0]["logprobs"]["content"]
    found = derendered["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in found] == [token["token"] for token in expected]


def test_a_score_is_a_named_tokens_probability(cluster: Cluster, model: str) -> None:
    query, items, labels = prompt_of(40, seed=21), [[5, 6], [7]], [9, 11, 13]
    with httpx.Client(base_url=cluster.url, timeout=30) as http:
        asked = {"query": query, "items": items, "label_token_ids": labels, "apply_softmax": False}
        scores = http.post("/generative_scoring", json={"model": model, **asked}).json()["data"]
        for item, score in zip(items, scores, strict=True):
            body = {
                "model": model, "prompt": [*query, *item], "max_tokens": 1, "logprobs": 0,
                "logprob_token_ids": labels, "return_tokens_as_token_ids": True,
            }  # fmt: skip
            [choice] = http.post("/v1/completions", json=body).json()["choices"]
            [top] = choice["logprobs"]["top_logprobs"]
            assert score["score"] == pytest.approx(math.exp(top["token_id:9"]), rel=1e-4)


def test_tokenize_and_back(cluster: Cluster) -> None:
    text = "héllo, wörld 🙂"
    tokens = httpx.post(f"{cluster.url}/tokenize", json={"prompt": text}).json()["tokens"]
    back = httpx.post(f"{cluster.url}/detokenize", json={"tokens": tokens}).json()
    assert back["prompt"] == text


def test_health_ready_version_metrics(cluster: Cluster) -> None:
    for path in ("/live", "/health", "/ready", "/version", "/metrics"):
        assert httpx.get(f"{cluster.url}{path}").status_code == 200, path


def test_a_reset_forgets_all_prefixes(client: openai.OpenAI, cluster: Cluster, model: str) -> None:
    prompt: Any = [{"role": "user", "content": "What does a reset forget? " * 8}]

    def num_cached() -> int:
        answer = client.chat.completions.create(model=model, messages=prompt, **GREEDY)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    num_cached()
    assert num_cached() > 0
    workers = httpx.get(f"{cluster.url}/server_info").json()["workers"]
    assert {worker["role"] for worker in workers} == {"prefill", "decode"}
    # A hand-off's blocks are given back a moment after the answer.
    deadline = time.monotonic() + 10
    while not httpx.post(f"{cluster.url}/reset_prefix_cache").json()["success"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert num_cached() == 0
