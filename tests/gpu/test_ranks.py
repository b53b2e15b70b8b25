"""Two ranks on two GPUs: NCCL, recorded steps, a lost rank. Written without one; never run."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.engine_home import EngineHome
from shared.engine.ranks import leader as leader_module
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.events import Failed
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError, RankError
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import Run, drain, make_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
SETTINGS: dict[str, Any] = {"device": "cuda:0", "num_blocks": 96, "max_num_seqs": 8}
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 3, "top_p": 0.8, "top_k": 30},
    {"presence_penalty": 0.5},
    {"logprobs": 2},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("on-two")
    write_random_checkpoint(path, CheckpointSpec(num_layers=2, vocab_size=300))
    return path


@pytest.fixture
def leader() -> Iterator[RankLeader]:
    found = RankLeader(RankSettings(tensor_parallel_size=2), device="cuda:0")
    yield found
    found.close()


def home_of(model: Path, leader: RankLeader | None, **settings: Any) -> EngineHome:
    load = partial(load_model if leader is None else leader.load, dtype="float32", device="cuda:0")
    config = EngineConfig(**SETTINGS | settings)
    return EngineHome(model, config, load, *([] if leader is None else [leader]))


def answers(home: EngineHome) -> Run:
    for i, own in enumerate(KINDS):
        prompt = [(i * 31 + j) % 250 for j in range(3 + 19 * i)]
        home.engine.add(make_request(f"{i}", prompt, max_tokens=12, **own))
    return drain(home.engine)


@needs_two
@pytest.mark.parametrize("is_eager", [True, False])
def test_two_devices_answer_as_one(model: Path, leader: RankLeader, is_eager: bool) -> None:
    """Also after sleep, which ends the graphs and keeps NCCL's group, and makes others."""
    found = []
    for ranks in (None, leader):
        home = home_of(model, ranks, enforce_eager=is_eager)
        for _ in range(2):
            run = answers(home)
            found.append([run.tokens(f"{i}") for i in range(len(KINDS))])
            home.sleep(1)
            home.wake_up()
        home.close()
    assert all(len(tokens) == 12 for tokens in found[0])
    assert found.count(found[0]) == 4


@needs_two
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("is_eager", [True, False])
def test_a_lost_rank_ends_the_wait_for_the_device(
    model: Path, number: signal.Signals, is_eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "_DEVICE_S", 10.0)
    ranks = RankSettings(tensor_parallel_size=2, distributed_timeout_seconds=5)
    leader = RankLeader(ranks, device="cuda:0")
    home = home_of(model, leader, enforce_eager=is_eager)
    home.engine.add(make_request("one", [5, 6, 7], max_tokens=60))
    drain(home.engine, until=lambda run: len(run.tokens("one")) > 2)
    os.kill(leader.pids[0], number)
    start = time.monotonic()
    events = []
    while not any(isinstance(event, Failed) for event in events):
        events = home.engine.step()
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, RankError)
    home.close()
    leader.close()
    assert time.monotonic() - start < 60
    assert torch.ones(3, device="cuda:0").sum().item() == 3  # the device is free


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes cuda:0 to cuda:63"):
        RankLeader(RankSettings(tensor_parallel_size=64), device="cuda:0")
