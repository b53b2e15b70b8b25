"""I11 across the hand-off: decode workers with each kind of draft answer as one engine without."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from shared.model.drafts.random_heads import HeadSpec, write_random_head
from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster, free_port
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

METHODS = ("draft_model", "eagle", "eagle3", "medusa")


@pytest.fixture(scope="module")
def drafting(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill worker, and a decode worker for each method. The draft model is the target."""
    folder = tmp_path_factory.mktemp("drafting")
    cluster = Cluster(checkpoint, folder)
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        for method in METHODS:
            model = checkpoint
            if method != "draft_model":
                model = folder / method
                write_random_head(model, checkpoint, HeadSpec(method=method))
            if method == "eagle3":
                # Of two layers there are no low, middle and high ones.
                edit_json(model / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
            settings = {"method": method, "model": str(model), "num_speculative_tokens": 3}
            cluster.add_worker(
                "decode", method, *ENGINE_FLAGS, "--local-prefill-threshold", "0",
                "--metrics-port", str(free_port()),
                "--speculative-config", json.dumps({**settings, "adaptive": False}),
            )  # fmt: skip
        cluster.wait_ready(num_decode=len(METHODS))
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def test_answers_are_those_of_one_engine(drafting: Cluster, oracle: LLM) -> None:
    asked: list[tuple[list[int], dict[str, Any]]] = [
        (
            prompt_of(5 + 23 * i, seed=i),
            {"max_tokens": 24, "temperature": 0.9 * (i % 2), "seed": i},
        )
        for i in range(12)
    ]

    def answer(one: tuple[list[int], dict[str, Any]]) -> tuple[int, ...]:
        return ask(drafting, one[0], ignore_eos=True, **one[1]).token_ids

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(answer, asked))
    assert answers == [expect(oracle, prompt, **params) for prompt, params in asked]
    drafting.wait_idle()
    counted = {
        (method, what): drafting.metric(method, f"baton_spec_decode_num_{what}_total")
        for method in METHODS
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    }
    assert all(counted[method, "drafts"] > 0 for method in METHODS)
    # The draft is the target: whatever is drafted for a greedy sequence is right.
    assert counted["draft_model", "accepted_tokens"] > 0
