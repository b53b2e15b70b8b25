"""A group of two processes answers like one, and is lost as one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from cli.doctor.finding import Level
from cli.doctor.ranks import Ranks, check_ranks
from shared.engine.llm import LLM
from shared.engine.ranks import leader as leader_module
from shared.engine.ranks import processes
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.events import Failed
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError, InternalError, ModelLoadError, RankError
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.worker.health.rank_metrics import RankCollector
from tests.fakes.checkpoints.lora_folders import write_lora
from tests.fakes.checkpoints.mtp import DELTA_SIZES
from tests.fakes.engine.engines import drain, generate, make_request
from tests.fakes.engine.every_kind import ALL_KINDS, SHORT_OF_BLOCKS, assert_same, run
from tests.fakes.processes.warm_process import COLD_RANKS, WarmProcess
from tests.fakes.ranks.engines import group_of, is_running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.engine_home import EngineHome
    from shared.engine.ranks.orders import Order
    from shared.model.loaded import LoadedModel
    from shared.request.adapter_ref import AdapterRef

VOCAB = 300
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})

SETTINGS: dict[str, dict[str, Any]] = {
    "synchronous": {"async_scheduling": False},
    "overlapped": {"async_scheduling": True},
    "speculative": {"async_scheduling": True, "speculative_config": NGRAM},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("followed")
    write_random_checkpoint(path, CheckpointSpec(num_layers=2, vocab_size=VOCAB))
    return path


@pytest.fixture(scope="module")
def leader() -> Iterator[RankLeader]:
    found = RankLeader(RankSettings(tensor_parallel_size=2))
    yield found
    found.close()
    assert not any(is_running(pid) for pid in found.pids)


@pytest.fixture(scope="module")
def stages() -> Iterator[RankLeader]:
    found = RankLeader(RankSettings(pipeline_parallel_size=2))
    yield found
    found.close()
    assert not any(is_running(pid) for pid in found.pids)


@pytest.mark.parametrize(
    ("group", "name", "backend"),
    [
        *(("leader", name, "torch") for name in SETTINGS),
        ("stages", "synchronous", "torch"),
        ("stages", "speculative", "torch"),
        ("stages", "speculative", "native"),
    ],
)
def test_answers_are_those_of_one_process(
    model: Path, group: str, name: str, backend: str, request: pytest.FixtureRequest
) -> None:
    leader = request.getfixturevalue(group)
    settings = ALL_KINDS | SETTINGS[name]
    here = LLM(model, dtype="float32", attention_backend=backend, **settings)
    want = run(here.engine, here)
    counters = here.engine.stats().counters
    assert counters["num_preemptions"]
    assert bool(counters["spec_decode_num_accepted_tokens"]) == (name == "speculative")
    with group_of(leader, model, backend, **settings) as home:
        got = run(home.engine, here)
        own, other = home.engine.rank_memories
        assert own.layout.block_bytes == other.layout.block_bytes
        assert own.layout.block_bytes * 2 == home.engine.layout.block_bytes
        assert other.blocks.any(), "rank 1 has kept nothing"
    here.close()
    assert_same(got, want)


def answer(home: EngineHome, *, adapter: AdapterRef | None = None) -> list[int]:
    assert home.engine is not None
    return generate(
        home.engine, make_request("one", [5, 6, 7, 8], adapter=adapter, max_tokens=12)
    ).tokens("one")


@pytest.mark.parametrize(
    ("group", "backend"), [("leader", "torch"), ("stages", "torch"), ("stages", "native")]
)
def test_ranks_take_adapters_and_other_weights(
    model: Path, group: str, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Beside each other, by sleep and by update, as one process does; one slot for two adapters."""
    leader = request.getfixturevalue(group)
    other = tmp_path / "other"
    write_random_checkpoint(other, CheckpointSpec(num_layers=2, vocab_size=VOCAB, seed=5))
    settings = SHORT_OF_BLOCKS | {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}
    folders = [write_lora(model, tmp_path / f"{n}", seed=n, std=0.4) for n in range(2)]

    def answers(home: EngineHome) -> list[list[int]]:
        assert home.adapters is not None
        known = [home.adapters.load(f"{n}", str(folder))[0] for n, folder in enumerate(folders)]
        refs = [each.ref for each in known]
        found = [answer(home, adapter=ref) for ref in (None, *refs, None)]
        home.update_weights(other, "v2")
        found += [answer(home), answer(home, adapter=refs[1])]
        home.sleep(1)
        home.wake_up()
        return [*found, answer(home)]

    with group_of(None, model, backend, **settings) as alone:
        want = answers(alone)
    assert len({tuple(tokens) for tokens in want}) == 5
    with group_of(leader, model, backend, **settings) as home:
        assert answers(home) == want


def test_a_rank_may_be_late_where_no_step_waits(
    model: Path, leader: RankLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy host is late with blocks and weights. The limit of steps does not count there."""
    [pid] = leader.pids
    send = leader._send
    late = []

    def send_to_a_stopped_rank(order: Order) -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.15, os.kill, (pid, signal.SIGCONT)).start()
        late.append(type(order).__name__)
        send(order)

    with monkeypatch.context() as patched:
        patched.setattr(leader, "_limit_s", 0.01)
        patched.setattr(leader, "_send", send_to_a_stopped_rank)
        with group_of(leader, model, **SHORT_OF_BLOCKS):
            pass
        leader.keep(())
    assert leader.lost is None
    assert {"Build", "Unbuild", "Keep"} <= set(late)


def test_ranks_are_measured(leader: RankLeader) -> None:
    """What their sums take, and each process; a rank that is gone has no sample."""
    small, large = leader.measure_sums()
    assert small.num_bytes < large.num_bytes
    assert 0 < small.seconds < large.seconds

    def samples(*pids: int) -> dict[tuple[str, str], float]:
        by_rank = dict(enumerate((os.getpid(), *pids)))
        families = RankCollector(by_rank, model="m").collect()
        return {(s.name, s.labels["rank"]): s.value for f in families for s in f.samples}

    found = samples(*leader.pids)
    assert {rank for _, rank in found} == {"0", "1"}
    assert found["baton_rank_resident_bytes", "1"] > 1e7
    assert found["baton_rank_cpu_seconds_total", "1"] > 0.1
    with subprocess.Popen(["true"]) as gone:
        collector = RankCollector({0: os.getpid(), 1: gone.pid}, model="m")
    families = list(collector.collect())
    assert {s.labels["rank"] for f in families for s in f.samples} == {"0"}


def test_doctor_times_sums_between_ranks(
    leader: RankLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it asks for only if it is told how many there are to be."""
    [unasked] = check_ranks(Ranks())
    assert (unasked.level, unasked.text) == (Level.OK, "not asked for: --tensor-parallel-size 2")
    # Its own ranks would be the same processes, three seconds later.
    monkeypatch.setattr(leader_module, "RankLeader", lambda _settings, **_own: leader)
    monkeypatch.setattr(leader, "close", lambda: None)
    *_, found = check_ranks(Ranks(tensor_parallel_size=2))
    assert found.level in (Level.OK, Level.WARN)  # a busy machine's sums are slow
    assert re.search(
        r"2 reach each other: a sum of 4 KiB takes \d+ us, of 4 MiB [\d.]+", found.text
    )
    monkeypatch.setattr(leader, "lost", RankError("the process of rank 1 ended", rank=1))
    *_, found = check_ranks(Ranks(tensor_parallel_size=2))
    assert (found.level, found.text) == (Level.FAIL, "the process of rank 1 ended")
    *_, found = check_ranks(Ranks(tensor_parallel_size=65))
    assert found.level is Level.FAIL
    assert "must be 1 to 64" in found.text


@pytest.mark.parametrize("group", ["leader", "stages"])
def test_a_step_that_fails_on_all_ranks_fails_alone(
    model: Path, group: str, request: pytest.FixtureRequest
) -> None:
    """The group goes on: caches and rows of both ranks are still the same.

    So it does where the last of several stages fails, which alone chooses tokens.
    """
    leader = request.getfixturevalue(group)
    processors = ("tests.fakes.engine.logits_processors:Failing",)
    with group_of(leader, model, **SHORT_OF_BLOCKS, logits_processors=processors) as home:
        failing = make_request("fails", [5, 6, 7], extra_args={"fails": True})
        assert isinstance(generate(home.engine, failing).failure("fails"), InternalError)
        assert len(answer(home)) == 12


def test_what_one_rank_cannot_load_is_refused(
    model: Path, leader: RankLeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason and the rank are named, and the group can load something else."""
    with pytest.raises(ModelLoadError, match="no such"):
        leader.load(tmp_path / "no such model")
    with pytest.raises(ConfigError, match="2 ranks need a list of cores each"):
        leader.load(model, bind="0|1|0")
    # What a folder on a shared disk may do between two reads.
    monkeypatch.setattr(leader_module, "load_model", lambda _, **given: load_model(model, **given))
    other = tmp_path / "other"
    write_random_checkpoint(other, CheckpointSpec(num_layers=2, vocab_size=VOCAB, seed=6))
    with pytest.raises(ConfigError, match="rank 1 has other weights than rank 0"):
        leader.load(other, dtype="float32", attention_backend="torch")
    monkeypatch.undo()
    # What an upgrade may do between the start of this process and that of its ranks.
    monkeypatch.setattr(leader_module, "VERSION", "0.0.1")
    with pytest.raises(ConfigError, match=r"rank 1 has other version than rank 0: .*, 0\.0\.1"):
        leader.load(model, dtype="float32", attention_backend="torch")
    monkeypatch.undo()

    def load_natively(path: Path, **given: Any) -> LoadedModel:
        """What `auto` may choose where another host's CPU differs."""
        return load_model(path, **given | {"attention_backend": "native"})

    monkeypatch.setattr(leader_module, "load_model", load_natively)
    with pytest.raises(ConfigError, match=r"rank 1 has other kernels than rank 0: torch, native; "):
        leader.load(model, dtype="float32", attention_backend="torch")
    monkeypatch.undo()
    with group_of(leader, model, **SHORT_OF_BLOCKS) as home:
        assert len(answer(home)) == 12


def test_a_stage_may_have_states_alone(stages: RankLeader, tmp_path: Path) -> None:
    """Drafts are refused: the last stage alone learns which were rejected."""
    path = tmp_path / "states"
    layers = DELTA_SIZES | {"layer_types": ["linear_attention", "full_attention"]}
    spec = CheckpointSpec(architecture="qwen3_5_text", num_layers=2, vocab_size=VOCAB, extra=layers)
    write_random_checkpoint(path, spec)
    with (
        pytest.raises(ConfigError, match="put back states behind rejected drafts"),
        group_of(stages, path, **SHORT_OF_BLOCKS, speculative_config=NGRAM),
    ):
        pass
    with group_of(None, path, **SHORT_OF_BLOCKS) as alone:
        want = answer(alone)
    with group_of(stages, path, **SHORT_OF_BLOCKS) as home:
        assert answer(home) == want


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_gone_loses_the_group(model: Path, number: signal.Signals) -> None:
    """All requests end, by an error that names the rank; then nothing is left."""
    ranks = RankSettings(tensor_parallel_size=2, distributed_timeout_seconds=4)
    found = RankLeader(ranks)
    lost = threading.Event()
    found.on_lost(lost.set)
    with group_of(found, model, **SHORT_OF_BLOCKS) as home:
        home.engine.add(make_request("one", [5, 6, 7], max_tokens=100))
        drain(home.engine, until=lambda run: run.num_steps == 3)
        [pid] = found.pids
        os.kill(pid, number)
        events = home.engine.step()
        assert isinstance(events[-1], Failed)
        failure = events[-1].error
        assert isinstance(failure, RankError)
        assert failure.rank == 1
        assert home.engine.broken is failure
        assert lost.wait(5)
        with pytest.raises(InternalError, match="rank 1"):
            home.engine.add(make_request("two", [5]))
    with pytest.MonkeyPatch.context() as patch:
        # It holds nothing that others do not have: nothing is waited for.
        patch.setattr(processes, "_END_S", 60.0)
        found.close()
    assert not is_running(pid)


def test_followers_end_with_rank_0(model: Path, tmp_path: Path) -> None:
    """However it ends, and whatever they do. Its follower is started as users' are."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), COLD_RANKS: "1"}
    with (tmp_path / "log").open("wb") as log:
        argv = ("tests.fakes.ranks.leader", str(model))
        process = WarmProcess(argv, cwd=tmp_path, env=environment, log=log)
    found: list[str] = []
    while not found:
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
        found = re.findall(r"rank 1 is (\d+)\n", (tmp_path / "log").read_text())
    pid = int(found[0])
    assert is_running(pid)
    os.kill(pid, signal.SIGSTOP)
    process.kill()
    end_s = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < end_s
        time.sleep(0.02)
