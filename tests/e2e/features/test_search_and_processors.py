"""Beam search, `best_of`, custom logits processors and batches over a hand-off, as one engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cli.batch.command import BatchOptions, run_batch
from shared.request.beam_search import BeamOptions
from shared.request.sampling_params import SamplingParams
from tests.e2e.asking import prompt_of
from tests.e2e.one_cluster import one_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

pytestmark = one_cluster


def complete(cluster: Cluster, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": cluster.model.name, "prompt": prompt, "return_token_ids": True, **fields}
    response = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def tokens(reply: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in reply["choices"]]


def test_beams_are_those_of_one_engine(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(70, seed=21)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=0)
    beams = BeamOptions(width=4, length_penalty=0.5)
    (want,) = oracle.beam_search([prompt], beams, sampling, n=2)
    fields = {"use_beam_search": True, "n": 2, "best_of": 4, "length_penalty": 0.5}
    reply = complete(cluster, prompt, max_tokens=20, ignore_eos=True, logprobs=0, **fields)
    assert tokens(reply) == [list(answer.token_ids) for answer in want.outputs]
    for choice, answer in zip(reply["choices"], want.outputs, strict=True):
        expected = [position.chosen.logprob for position in answer.logprobs]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)
    assert reply["usage"]["completion_tokens"] == 40
    # The prompt was computed once, by the prefill worker.
    assert reply["timings"]["prefill_worker"] == "prefill-0"
    assert reply["usage"]["prompt_tokens_details"]["computed_tokens"] == 0
    cluster.wait_idle()


def test_a_conversation_is_searched_too(cluster: Cluster) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "ignore_eos": True}
    url = f"{cluster.url}/v1/chat/completions"
    found = []
    for fields in ({"n": 3}, {"n": 1, "best_of": 3}):
        response = httpx.post(url, json={**body, "use_beam_search": True, **fields}, timeout=60)
        found.append([c["message"]["content"] for c in response.json()["choices"]])
    assert len(found[0]) == 3
    assert found[1] == found[0][:1]


def test_the_best_of_seeded_answers(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(50, seed=22)
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=5, logprobs=0, ignore_eos=True)
    (drawn,) = oracle.generate([prompt], sampling, n=4)

    def mean(answer: Any) -> float:
        return sum(p.chosen.logprob for p in answer.logprobs) / len(answer.logprobs)

    best = sorted(drawn.outputs, key=mean, reverse=True)[:2]
    reply = complete(
        cluster, prompt, max_tokens=8, temperature=1.0, seed=5, n=2, best_of=4, ignore_eos=True
    )
    assert tokens(reply) == [list(answer.token_ids) for answer in best]
    assert reply["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_custom_processors_follow_the_answer(
    cluster: Cluster, oracle: LLM, temperature: float
) -> None:
    prompt = prompt_of(70, seed=23)
    fields = {"temperature": temperature, "seed": 9, "max_tokens": 30, "ignore_eos": True}
    sampling = SamplingParams(**fields, extra_args={"no_repeat": 5})  # type: ignore[arg-type]  # fields of any type
    (alone,) = oracle.generate([prompt], sampling)
    reply = complete(cluster, prompt, vllm_xargs={"no_repeat": 5}, **fields)
    assert reply["timings"]["prefill_worker"] == "prefill-0"
    assert tokens(reply) == [list(alone.outputs[0].token_ids)]


def test_custom_processors_see_the_first_token(cluster: Cluster, oracle: LLM) -> None:
    greedy = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)

    def answer(prompt: list[int], sampling: SamplingParams) -> list[int]:
        return list(oracle.generate([prompt], sampling)[0].outputs[0].token_ids)

    # A prompt after which the most likely token is one that the processor rules out.
    prompts = (prompt_of(100, seed=seed) for seed in range(100))
    prompt = next(p for p in prompts if answer(p, greedy)[0] in p)
    want = answer(prompt, replace(greedy, extra_args={"no_repeat": 100}))
    assert want[0] not in prompt
    fields = {"max_tokens": 2, "temperature": 0.0, "ignore_eos": True}
    reply = complete(cluster, prompt, extra_args={"no_repeat": 100}, **fields)
    assert reply["timings"]["prefill_worker"] == "prefill-0"
    assert tokens(reply) == [want]


def test_a_wrong_argument_is_the_clients_fault(cluster: Cluster) -> None:
    body = {"prompt": prompt_of(40), "max_tokens": 2, "extra_args": {"no_repeat": "x"}}
    response = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert "no_repeat" in response.json()["error"]["message"]
    cluster.wait_idle()


def test_a_batch_gets_the_answers_of_single_requests(cluster: Cluster, tmp_path: Path) -> None:
    bodies = {
        f"r{i}": {"prompt": prompt_of(20 + i, seed=i), "max_tokens": 4 + i, "temperature": 0}
        for i in range(6)
    }
    options = BatchOptions(
        input=tmp_path / "in.jsonl", output=tmp_path / "out.jsonl", url=cluster.url, concurrency=3
    )
    options.input.write_text(
        "".join(
            json.dumps(
                {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}
            )
            + "\n"
            for name, body in bodies.items()
        )
    )
    assert run_batch(options) == 0
    lines = [json.loads(line) for line in options.output.read_text().splitlines()]
    found = {line["custom_id"]: line["response"] for line in lines}
    assert found.keys() == bodies.keys()
    for name, body in bodies.items():
        alone = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).json()
        assert found[name]["body"]["choices"][0]["text"] == alone["choices"][0]["text"]
        assert found[name]["request_id"]
