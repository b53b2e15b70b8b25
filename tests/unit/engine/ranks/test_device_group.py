"""A group on devices, with stand-ins: its sums beside its agreement, and what it records."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.engine import Engine
from shared.engine.ranks import assembly
from shared.engine.ranks.channels import device as device_channels
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.events import Failed
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.ranks import RankSettings
from shared.errors import RankError
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.ranks.nccl_group import NcclCollective
from tests.fakes.engine.engines import Run, drain, make_request
from tests.fakes.ranks.devices import DeviceMeeting, FollowerThreads, RegionRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from shared.model.loaded import LoadedModel

SETTINGS: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "enable_return_hidden_states": True,
}
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 3, "top_p": 0.8, "top_k": 30},
    {"presence_penalty": 0.5},
    {"logprobs": 2},
    {"return_hidden_states": True},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("on-devices")
    write_random_checkpoint(path, CheckpointSpec(num_layers=2, vocab_size=300))
    return path


class Group:
    """Two ranks as threads, which think that they compute on devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.meeting = DeviceMeeting(2)
        self.recorders = [RegionRecorder(calls) for calls in self.meeting.calls]

        def join(_store: object, rank: int, size: int, device: torch.device, **_: Any) -> Any:
            return NcclCollective(self.meeting.group(rank), rank, size, device)

        monkeypatch.setattr(device_channels, "nccl_collective", join)
        monkeypatch.setattr(assembly, "devices_of", lambda size, _: ["cpu"] * size)
        monkeypatch.setattr(assembly, "FollowerProcesses", FollowerThreads)
        monkeypatch.setattr(FollowerThreads, "recorders", {1: self.recorders[1]})
        ranks = RankSettings(tensor_parallel_size=2, distributed_timeout_seconds=5)
        self.leader = RankLeader(ranks, device="cuda")

    def load(self, model: Path) -> LoadedModel:
        return self.leader.load(model, dtype="float32", attention_backend="torch")

    def engine(self, loaded: LoadedModel, **settings: Any) -> Engine:
        config = EngineConfig(**SETTINGS | settings)
        return Engine(loaded, config, recorder=self.recorders[0], followers=self.leader)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    found = Group(monkeypatch)
    yield found
    found.leader.close()


@contextmanager
def closing(engine: Engine) -> Iterator[Engine]:
    yield engine
    engine.close()


def answers(engine: Engine) -> Run:
    for i, own in enumerate(KINDS):
        prompt = [(i * 31 + j) % 250 for j in range(3 + 9 * i)]
        engine.add(make_request(f"{i}", prompt, max_tokens=9, **own))
    return drain(engine)


def test_ranks_replay_the_same_steps_with_the_same_operations(model: Path, group: Group) -> None:
    """Tokens of one process; eager steps between replayed ones, overlapped."""
    alone = load_model(model, dtype="float32", attention_backend="torch")
    with closing(Engine(alone, EngineConfig(**SETTINGS))) as engine:
        want = answers(engine)
    with closing(group.engine(group.load(model), async_scheduling=True)) as engine:
        got = answers(engine)
    for i in range(len(KINDS)):
        assert got.tokens(f"{i}") == want.tokens(f"{i}"), KINDS[i]
        assert len(got.tokens(f"{i}")) == 9
    zero, one = group.recorders
    assert zero.replayed == one.replayed
    assert {1, 4} <= set(zero.replayed)
    # By size, the largest first: the embedding's sum, two for each layer, and the logits.
    assert zero.regions == one.regions
    acts = ["all_reduce"] * 5 + ["all_gather"]
    assert [[act for act, _, _ in region] for region in zero.regions] == [acts] * 3
    assert [region[0][1][0] for region in zero.regions] == [4, 2, 1]
    # Nothing but the model uses the devices' operations, and each rank's are the other's.
    calls = group.meeting.calls
    assert calls[0] == calls[1]


def test_a_rank_that_cannot_record_fails_all(model: Path, group: Group) -> None:
    """At once, before any begins another one. If none can, the group lives on."""
    loaded = group.load(model)
    for recorder in group.recorders:
        recorder.fails = True
    with pytest.raises(ZeroDivisionError):
        group.engine(loaded)
    for recorder in group.recorders:
        recorder.fails = False
    with closing(group.engine(loaded, num_blocks=32)) as engine:
        engine.add(make_request("a", [5, 6, 7]))
        assert len(drain(engine).tokens("a")) == 8
        assert len(group.recorders[0].regions) == 4
    group.recorders[1].fails = True
    with pytest.raises(RankError, match="1 of 2 ranks failed a step"):
        group.engine(loaded)
    assert group.leader.lost is not None
    assert len(group.recorders[0].regions) == 5


def test_a_rank_that_stops_in_a_step_is_not_waited_for(
    model: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device waits without a limit; the host ends that."""
    loaded = group.load(model)
    engine = group.engine(loaded)
    engine.add(make_request("a", [5, 6, 7]))
    drain(engine, until=lambda run: len(run.tokens("a")) == 2)
    monkeypatch.setattr(group.leader._watch, "_limit_s", 0.2)
    group.meeting.stopped = 1
    failed = engine.step()[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RankError)
    assert "did not end a step within" in str(failed.error)
    assert group.leader.lost is failed.error
    engine.close()
