"""One scheduler, and a runner on each rank that follows its plans: answers are those of one."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.step.plan_codec import decode_plan, encode_plan
from shared.model.loader import load_model
from shared.model.sharding.split import Split
from tests.fakes.engines import generate, make_engine, make_request
from tests.fakes.family_cases import CASES
from tests.fakes.ranks import RUN_BY
from tests.fakes.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.step.model_runner import ModelRunner, RunningStep, StepResult
    from shared.engine.step.plan import StepPlan
    from shared.ranks.base import Collective

#: Prompts are chunks of 16.
SETTINGS: dict[str, Any] = {"max_num_batched_tokens": 16}
#: A family, its heads, ranks, and blocks: too few for all sequences to their ends.
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "windows": ("gemma3", {}, 2, 44),
    "one head of keys": ("olmo2", {"num_attention_heads": 12, "num_key_value_heads": 1}, 4, 20),
    "states": ("lfm2", {}, 3, 40),
    "latent rows": ("deepseek_v3", {}, 2, 20),
}


@dataclass
class Leading:
    """Rank 0's runner, which sends its plans to the followers."""

    runner: ModelRunner
    followers: list[Queue[bytes]]

    def launch(self, plan: StepPlan) -> RunningStep:
        for queue in self.followers:
            queue.put(encode_plan(plan))
        return self.runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        return self.runner.collect(step)


def requests() -> list[Any]:
    """Greedy ones, one that samples, and one that wants logprobs, longer than a step."""
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (3, 21, 40)]
    return [
        make_request("greedy", prompts[0], max_tokens=12),
        make_request("sampled", prompts[1], max_tokens=10, temperature=0.8, seed=5, top_k=20),
        make_request("scored", prompts[2], max_tokens=8, logprobs=2),
    ]


def answers_of(engine: Any) -> dict[str, list[int]]:
    run = generate(engine, *requests())
    return {name: run.tokens(name) for name in run.events}


def rank_answers(
    rank: Collective,
    path: Path,
    queues: list[Queue[bytes]],
    backend: str,
    settings: dict[str, Any],
) -> dict[str, list[int]] | int:
    """What rank 0 answers; of a follower, the number of its steps."""
    split = Split(rank=rank.rank, size=rank.size)
    loaded = load_model(
        path, attention_backend=backend, split=split, collective=rank, num_threads=1
    )
    engine = make_engine(loaded, **settings)
    runner = engine._parts.runner
    if rank.rank == 0:
        engine._steps._runner = Leading(runner, queues[1:])  # type: ignore[assignment]
        try:
            return answers_of(engine)
        finally:
            for queue in queues[1:]:
                queue.put(b"")
    num_steps = 0
    while plan := queues[rank.rank].get(timeout=60):
        runner.collect(runner.launch(decode_plan(plan)))
        num_steps += 1
    return num_steps


@pytest.mark.parametrize(
    ("name", "backend", "settings"),
    [
        *((name, "torch", {}) for name in MODELS),
        ("one head of keys", "torch", {"kv_cache_dtype": "int8"}),
        ("one head of keys", "native", {"kv_cache_dtype": "int8"}),
        ("states", "native", {}),
    ],
)
def test_ranks_follow_one_plan(
    name: str, backend: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    case, heads, size, num_blocks = MODELS[name]
    settings = {**SETTINGS, **settings, "num_blocks": num_blocks}
    model_type, own = CASES[case]
    path = save(random_model(model_type, **{**own, **heads}), tmp_path)
    loaded = load_model(path, attention_backend=backend, num_threads=1)
    expected = answers_of(make_engine(loaded, **settings))
    assert {key: len(tokens) for key, tokens in expected.items()} == {
        "greedy": 12,
        "sampled": 10,
        "scored": 8,
    }
    queues: list[Queue[bytes]] = [Queue() for _ in range(size)]
    found, *steps = RUN_BY[backend](
        size, lambda rank: rank_answers(rank, path, queues, backend, settings)
    )
    assert found == expected
    assert len(set(steps)) == 1
