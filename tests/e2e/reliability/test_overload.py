"""I15 with real processes: what is refused costs no worker anything, what is accepted is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shared.errors import RefusalReason
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_TOKENS, PROMPT_LEN = 96, 80
MAX_INSIDE, MAX_QUEUED, MAX_ON_WORKER = 8, 4, 6


@pytest.fixture(scope="module")
def narrow(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Bounds everywhere: few inside, few waiting, and fewer on the decode worker."""
    cluster = Cluster(
        checkpoint,
        tmp_path_factory.mktemp("overload"),
        router_flags=(
            *("--max-concurrent-requests", str(MAX_INSIDE)),
            *("--max-queued-requests", str(MAX_QUEUED)),
        ),
    )
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        cluster.add_worker(
            *("decode", "decode-0", *ENGINE_FLAGS),
            *("--max-num-seqs", "4", "--max-waiting-requests", str(MAX_ON_WORKER - 4)),
        )
        cluster.wait_ready()
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def _body(cluster: Cluster, prompt: list[int], **rest: Any) -> dict[str, Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    body = {"model": cluster.model.name, "prompt": prompt, "max_tokens": NUM_TOKENS}
    return {**fixed, **body, **rest}


async def _flood(cluster: Cluster, prompts: list[list[int]], **rest: Any) -> list[httpx.Response]:
    """All at once; the answers in the order in which they came."""
    order: list[httpx.Response] = []
    limits = httpx.Limits(max_connections=None)

    async def one(http: httpx.AsyncClient, place: int, prompt: list[int]) -> None:
        response = await http.post("/v1/completions", json=_body(cluster, prompt, **rest))
        response.extensions["place"] = place
        order.append(response)

    async with httpx.AsyncClient(base_url=cluster.url, timeout=60, limits=limits) as http:
        await asyncio.gather(*(one(http, i, prompt) for i, prompt in enumerate(prompts)))
    return order


async def test_a_flood_is_refused_at_once_and_the_rest_is_answered_right(
    narrow: Cluster, oracle: LLM
) -> None:
    prompts = [prompt_of(PROMPT_LEN, seed=i) for i in range(60)]
    before = _computed(narrow)
    answers = await _flood(narrow, prompts)
    codes = Counter(answer.status_code for answer in answers)
    assert set(codes) == {200, 429}
    # Those that found a place on the worker at once, those that waited for one, and those that
    # took the place of one that had ended.
    last_refusal = max(i for i, answer in enumerate(answers) if answer.status_code == 429)
    num_ended = sum(answer.status_code == 200 for answer in answers[:last_refusal])
    assert MAX_ON_WORKER <= codes[200] <= MAX_INSIDE + MAX_QUEUED + num_ended
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
            continue
        prompt = prompts[answer.extensions["place"]]
        (choice,) = answer.json()["choices"]
        wanted = expect(oracle, prompt, max_tokens=NUM_TOKENS, temperature=0.0)
        assert tuple(choice["token_ids"]) == wanted
    # A request that is refused does not wait for those that are served.
    assert last_refusal < len(answers) - 1
    reasons = _refusals(narrow)
    assert sum(reasons.values()) == codes[429]
    assert set(reasons) <= {RefusalReason.QUEUE_FULL, RefusalReason.WORKER_FULL}
    # No prompt was computed but those of the answers, on either worker.
    narrow.wait_idle()
    assert 0 < _computed(narrow) - before <= codes[200] * (PROMPT_LEN + NUM_TOKENS)


async def test_who_cannot_meet_its_bound_is_refused_before_any_work(narrow: Cluster) -> None:
    before = {name: dict(narrow.load(name).counters) for name in narrow.workers}
    prompts = [prompt_of(PROMPT_LEN, seed=100 + i) for i in range(20)]
    answers = await _flood(narrow, prompts, max_ttft_ms=0.01)
    assert {answer.status_code for answer in answers} == {429}
    assert "expected first token" in answers[0].json()["error"]["message"]
    assert _refusals(narrow)[RefusalReason.EXPECTED_TTFT] == len(prompts)
    assert {name: dict(narrow.load(name).counters) for name in narrow.workers} == before


def _computed(cluster: Cluster) -> int:
    """Tokens that were computed: of prompts, and each of an answer but its last."""
    return sum(cluster.load(name).counters["computed_tokens"] for name in cluster.workers)


def _refusals(cluster: Cluster) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for line in httpx.get(f"{cluster.url}/metrics").text.splitlines():
        if line.startswith("baton_requests_refused_total{"):
            reasons[line.split('reason="')[1].split('"')[0]] += int(float(line.split()[-1]))
    return reasons
