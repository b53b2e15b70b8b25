"""One scheduler, and a runner on each rank that follows its plans: answers are those of one."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch

from shared.engine.step.followers.followers import NoFollowers
from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.followers.staged import FirstStage, send_result
from shared.kv.split import KVSplit
from shared.model.loader import load_model
from shared.model.sharding.split import Split
from shared.model.sharding.stages import stage_layers
from shared.ranks.plan_ring import PlanRingReceiver, PlanRingSender, ring_file
from shared.ranks.ring_pipe import PipeEnd, RingPipe, pipe_file
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.families.cases import CASES
from tests.fakes.model.transformers_models import random_model, random_prompt, save
from tests.fakes.ranks.threads import RUN_BY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.model_runner import ModelRunner
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep, StepResult
    from shared.model.loaded import LoadedModel

T = TypeVar("T")
#: Prompts are chunks of 16.
SETTINGS: dict[str, Any] = {"max_num_batched_tokens": 16}
#: A family, its heads, ranks, and blocks: too few for all sequences to their ends.
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "windows": ("gemma3", {}, 2, 44),
    "one head of keys": ("olmo2", {"num_attention_heads": 12, "num_key_value_heads": 1}, 4, 20),
    "states": ("lfm2", {}, 3, 40),
    "latent rows": ("deepseek_v3", {}, 2, 20),
}
#: The same, with ranks of a stage, and stages. Layers are 3 or 4.
STAGES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "dense, tied": ("gemma", {"num_hidden_layers": 3}, 1, 3, 20),
    "learned positions": ("gpt2", {}, 1, 2, 20),
    "windows": ("gemma3", {}, 1, 3, 44),
    "experts": ("gpt_oss", {"num_hidden_layers": 3}, 1, 2, 44),
    "latent rows": ("deepseek_v3", {}, 2, 2, 20),
    "states": ("lfm2", {}, 1, 3, 40),
    "two mixers": ("falcon_h1", {}, 1, 2, 40),
}


class Group:
    """The channels of ranks in threads."""

    def __init__(self, size: int, num_stages: int, backend: str = "torch") -> None:
        self.size, self.num_stages, self._backend = size, num_stages, backend
        self.plans: list[Queue[bytes]] = [Queue() for _ in range(size * num_stages)]
        self.results = ring_file(2)
        #: By rank that sends.
        self._pipes = [pipe_file() for _ in range(size * (num_stages - 1))]

    def run(self, work: Callable[[Any], T]) -> list[T]:
        """What each rank's thread returns."""
        return RUN_BY[self._backend](self.size, work, num_stages=self.num_stages)

    def split(self, rank: Any) -> Split:
        """A rank's place."""
        return Split(rank=rank.rank, size=rank.size, stage=rank.stage, num_stages=self.num_stages)

    def load(self, path: Path, rank: Any) -> LoadedModel:
        """A rank's part of a model."""
        split = self.split(rank)
        return load_model(
            path,
            attention_backend=self._backend,
            split=split,
            collective=rank,
            pipe=None if self.num_stages == 1 else self._pipe(split),
            num_threads=1,
        )

    def _pipe(self, split: Split) -> RingPipe:
        def end(sender: int) -> PipeEnd:
            return PipeEnd(self._pipes[sender].fd, (sender, sender + self.size))

        number = split.number
        before = None if split.is_first else end(number - self.size)
        return RingPipe(before, None if split.is_last else end(number))


class Leading(NoFollowers):
    """Rank 0's hold on the others."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def lead(self, runner: Any, config: EngineConfig) -> Any:
        leading = LeadingRunner(runner, self._group.plans[1:])
        num_stages = self._group.num_stages
        if num_stages == 1:
            return leading
        results = PlanRingReceiver(self._group.results.fd, 1, 2, limit_s=60)
        return FirstStage(leading, results, num_stages)


@dataclass
class LeadingRunner:
    """Rank 0's runner, which sends its plans to the followers."""

    runner: ModelRunner
    followers: list[Queue[bytes]]
    num_stages = 1

    def launch(self, plan: StepPlan) -> RunningStep:
        for queue in self.followers:
            queue.put(encode_plan(plan))
        return self.runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        return self.runner.collect(step)

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        raise NotImplementedError


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
    rank: Any,
    path: Path,
    group: Group,
    settings: dict[str, Any],
    ask: Callable[[Engine], Any],
) -> tuple[Any, int, list[torch.Tensor]]:
    """What rank 0 answers, the number of a rank's steps, and the blocks of its groups."""
    split = group.split(rank)
    number = split.number
    loaded = group.load(path, rank)
    if number == 0:
        engine = make_engine(loaded, followers=Leading(group), **settings)
        try:
            found = ask(engine)
            return found, engine.stats().counters["engine_steps"], blocks_of(engine)
        finally:
            for queue in group.plans[1:]:
                queue.put(b"")
    engine = make_engine(loaded, **settings)
    runner = engine._parts.runner
    results = None
    if group.num_stages > 1 and split.is_last and not split.rank:
        results = PlanRingSender(group.results.fd, 2)
    num_steps = 0
    while plan := group.plans[number].get(timeout=60):
        result = runner.collect(runner.launch(decode_plan(plan)))
        if results is not None:
            send_result(results, result)
        num_steps += 1
    return None, num_steps, blocks_of(engine)


def blocks_of(engine: Engine) -> list[torch.Tensor]:
    """By group: [blocks, layers, ...]."""
    return [view.clone() for view in engine._parts.arena._views]


def compare(
    path: Path, size: int, num_stages: int, settings: dict[str, Any], backend: str = "torch"
) -> None:
    """Ranks answer as one process does."""
    torch.set_num_threads(1)
    loaded = load_model(path, attention_backend=backend, num_threads=1)
    expected = answers_of(make_engine(loaded, **settings))
    assert {key: len(tokens) for key, tokens in expected.items()} == {
        "greedy": 12,
        "sampled": 10,
        "scored": 8,
    }
    group = Group(size, num_stages, backend)
    (found, num_steps, _), *others = group.run(
        lambda rank: rank_answers(rank, path, group, settings, answers_of)
    )
    assert found == expected
    assert [steps for _, steps, _ in others] == [num_steps] * (size * num_stages - 1)


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
    case, heads, size, num_blocks = MODELS[name]
    model_type, own = CASES[case]
    path = save(random_model(model_type, **{**own, **heads}), tmp_path)
    compare(path, size, 1, {**SETTINGS, **settings, "num_blocks": num_blocks}, backend)


@pytest.mark.parametrize(
    ("name", "backend", "own_settings"),
    [
        *((name, backend, {}) for name in STAGES for backend in ("torch", "native")),
        ("windows", "native", {"kv_cache_dtype": "int8"}),
    ],
)
def test_stages_follow_one_plan(
    name: str, backend: str, own_settings: dict[str, Any], tmp_path: Path
) -> None:
    case, sizes, size, num_stages, num_blocks = STAGES[name]
    model_type, own = CASES[case]
    path = save(random_model(model_type, **{**own, **sizes}), tmp_path)
    settings = {**SETTINGS, **own_settings, "num_blocks": num_blocks}
    compare(path, size, num_stages, settings, backend)


def held_blocks(engine: Engine) -> list[list[int]]:
    """By group: the blocks of a prompt that is held for a hand-off."""
    prompt = random_prompt(40, vocab_size=321, seed=40)
    generate(engine, make_request("held", prompt, hold_blocks=True))
    tables = engine._scheduler.held["held"].tables
    return [[block for block in table if block >= 0] for table in tables]


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("name", ["windows", "states"])
def test_a_stage_keeps_what_the_hand_off_takes_from_it(
    name: str, backend: str, tmp_path: Path
) -> None:
    """Natively its bits."""
    case, sizes, _, num_stages, num_blocks = STAGES[name]
    model_type, own = CASES[case]
    path = save(random_model(model_type, **{**own, **sizes}), tmp_path)
    settings = {**SETTINGS, "num_blocks": num_blocks}
    loaded = load_model(path, attention_backend=backend, num_threads=1)
    alone = make_engine(loaded, **settings)
    places, whole = held_blocks(alone), blocks_of(alone)
    group = Group(1, num_stages, backend)
    tolerance = 0.0 if backend == "native" else 1e-3
    ranks = group.run(lambda rank: rank_answers(rank, path, group, settings, held_blocks))
    tables = ranks[0][0]
    assert list(map(len, tables)) == list(map(len, places))
    stages = stage_layers(loaded.spec, num_stages)
    assert [len(layers) for layers in stages] == [1, 1, 1]
    split = KVSplit.of_stages(loaded.spec.kv_groups, stages)
    for rank, (_, _, found) in enumerate(ranks):
        for number, (kept, every) in enumerate(zip(found, whole, strict=True)):
            layers = split.layers(rank, number)
            expected = every[places[number], layers.start : layers.stop]
            assert expected.any() == bool(layers)
            torch.testing.assert_close(
                kept[tables[number]], expected, atol=tolerance, rtol=tolerance
            )
