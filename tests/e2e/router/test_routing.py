"""Cache-aware routing with real processes: a conversation stays where its prefix lives."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_CONVERSATIONS = 4
NUM_TURNS = 5
PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def two_by_one(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two prefill workers. The decode worker keeps next to nothing, so the prefix lives there."""
    cluster = Cluster(checkpoint, tmp_path_factory.mktemp("routing"))
    try:
        for name in ("prefill-0", "prefill-1"):
            cluster.add_worker("prefill", name, *ENGINE_FLAGS)
        cluster.add_worker(
            *("decode", "decode-0", *ENGINE_FLAGS),
            *("--local-prefill-threshold", "0", "--no-enable-prefix-caching"),
        )
        cluster.wait_ready(num_prefill=2)
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def _explain(cluster: Cluster, prompt: list[int]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{cluster.url}/v1/route",
        json.dumps({"prompt": prompt, "max_tokens": 1}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        explanation: dict[str, Any] = json.load(response)
    return explanation


def _wait_reported(cluster: Cluster, worker: str, prompt: list[int]) -> None:
    """Until the router's index or its predictions know the prompt's blocks on `worker`."""
    deadline = time.monotonic() + PATIENCE_S
    wanted = len(prompt) // BLOCK_SIZE * BLOCK_SIZE
    while True:
        candidates = _explain(cluster, prompt)["prefill"]["candidates"]
        held = {c["worker"]: c["num_held_tokens"] for c in candidates}
        if len(held) == 2 and held[worker] >= wanted - 1:
            return
        assert time.monotonic() < deadline, candidates
        time.sleep(0.05)


def test_conversations_stay_where_their_prefix_lives(two_by_one: Cluster, oracle: LLM) -> None:
    homes, num_stayed = set(), 0
    for conversation in range(NUM_CONVERSATIONS):
        prompt = prompt_of(600, seed=100 + conversation)
        home, num_known = "", 0
        for turn in range(NUM_TURNS):
            reply = ask(two_by_one, prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
            assert reply.token_ids == expect(oracle, prompt, max_tokens=8, temperature=0.0)
            worker = reply.timings.prefill_worker
            if turn:
                num_stayed += worker == home
                # Wherever it went, nothing is computed twice. (The answer of the turn before was
                # written elsewhere.)
                assert reply.usage.cached_tokens >= num_known // BLOCK_SIZE * BLOCK_SIZE
            home, num_known = worker, len(prompt)
            _wait_reported(two_by_one, worker, prompt)
            prompt = [*prompt, *reply.token_ids, *prompt_of(20, seed=1000 * conversation + turn)]
        homes.add(home)
    assert homes <= {"prefill-0", "prefill-1"}
    # A worker that was slow for a moment may be left for one that fetches the prefix from it. By
    # chance half of them would stay.
    assert num_stayed >= NUM_CONVERSATIONS * (NUM_TURNS - 1) * 3 // 4
    two_by_one.wait_idle()


def test_an_explanation_names_the_holder(two_by_one: Cluster) -> None:
    prompt = prompt_of(600, seed=7)
    home = ask(two_by_one, prompt, max_tokens=2, temperature=0.0).timings.prefill_worker
    _wait_reported(two_by_one, home, prompt)
    explanation = _explain(two_by_one, prompt)
    candidates = {c["worker"]: c for c in explanation["prefill"]["candidates"]}
    [other] = set(candidates) - {home}
    held = 600 // BLOCK_SIZE * BLOCK_SIZE
    assert held - BLOCK_SIZE <= candidates[home]["num_held_tokens"] <= held
    assert candidates[other]["num_held_tokens"] == 0
    # Which one is cheaper depends on measured speeds, which are noise for a model so small: the
    # other one may fetch from the holder, which takes next to nothing.
    assert explanation["route"]["prefill"][0] == min(
        candidates, key=lambda worker: candidates[worker]["cost_ms"]
    )
