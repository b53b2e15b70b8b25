"""A group whose ranks are on several hosts: here, programs with addresses of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from cli.doctor.ranks import Ranks, check_ranks
from shared.engine.engine_home import EngineHome
from shared.engine.llm import LLM
from shared.engine.ranks import leader as leader_module
from shared.engine.ranks.handshake import OwnNode
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.events import Failed
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError, RankError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.offline import llm as offline
from shared.offline.records.sampling_params import SamplingParams
from tests.fakes.engine.engines import drain, make_request
from tests.fakes.engine.every_kind import ALL_KINDS, SHORT_OF_BLOCKS, assert_same, run
from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.ranks.hosts import Hosts, hosts, wait_for_words
from tests.fakes.servers.loopback import LOOPBACK6

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.engine.engines import Run

MODEL: dict[str, Any] = {"dtype": "float32", "attention_backend": "torch"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("divided")
    write_random_checkpoint(path, CheckpointSpec(num_layers=3, vocab_size=300))
    return path


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[tuple[LLM, Run]]:
    """One process, and its answers."""
    llm = LLM(model, **MODEL, **ALL_KINDS)
    yield llm, run(llm.engine, llm)
    llm.close()


@contextmanager
def led(
    found: Hosts, model: Path, *, backend: str = "torch", **settings: Any
) -> Iterator[EngineHome]:
    """An engine of the group."""
    with ExitStack() as stack:
        leader = RankLeader(RankSettings(**found.settings()))
        stack.callback(leader.close)
        load = partial(leader.load, **MODEL | {"attention_backend": backend})
        home = EngineHome(model, EngineConfig(**settings), load, leader)
        stack.callback(home.close)
        yield home


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 2, "nnodes": 2},
        {"pipeline_parallel_size": 3, "nnodes": 3},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2},
    ],
    ids=["2 ranks", "3 stages", "2 stages of 2"],
)
def test_answers_are_those_of_one_process(
    model: Path, alone: tuple[LLM, Run], sizes: dict[str, int], tmp_path: Path
) -> None:
    llm, want = alone
    with hosts(tmp_path, **sizes) as found:
        for node in range(1, sizes["nnodes"]):
            found.start(node)
        # Stages of one rank add nothing up: the native kernels compute them on any host.
        backend = "native" if "tensor_parallel_size" not in sizes else "torch"
        with led(found, model, backend=backend, **ALL_KINDS) as home:
            assert_same(run(home.engine, llm), want)
        for node, process in found.processes.items():
            # Its supervisor starts it again, and it waits for the next node 0.
            assert process.wait(20) == 1
            assert "node 0 has ended" in found.log_of(node).read_text()


def test_a_program_may_be_host_0(model: Path, tmp_path: Path) -> None:
    """With vLLM's words, and IPv6; a program is no other host, and has no tiers there."""
    prompt = {"prompt_token_ids": [5, 6, 7, 8, 9]}
    ten = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    settings: dict[str, Any] = {**MODEL, "num_blocks": 64, "skip_tokenizer_init": True}

    def answer(**ranks: Any) -> list[int]:
        llm = offline.LLM(str(model), **settings, **ranks)
        [output] = llm.generate(prompt, ten)
        llm.close()
        return list(output.outputs[0].token_ids)

    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2, master_addr=LOOPBACK6) as found:
        found.start(1, {"host": LOOPBACK6})
        assert answer(**found.settings(), distributed_executor_backend="mp") == answer()
        for other, reason in (
            ({"node_rank": 1}, "node_rank 1: a program is node 0; .* baton serve decode"),
            ({"kv_offload_host_gib": 1}, "nnodes 2: tiers below the blocks"),
        ):
            with pytest.raises(ConfigError, match=reason):
                offline.LLM(str(model), **settings, **found.settings() | other)


def test_a_host_waits_for_node_0_until_it_is_told_to_end(tmp_path: Path) -> None:
    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2) as found:
        process = found.start(1)
        wait_for_words(found.log_of(1), "waiting_for_node_0 .*Connection refused")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_hosts_may_have_the_model_in_different_places(model: Path, tmp_path: Path) -> None:
    """It must be the same one."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    shutil.copytree(model, copy)
    write_random_checkpoint(other, CheckpointSpec(num_layers=3, vocab_size=300, seed=5))
    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2) as found:
        found.start(1, {"folder": str(copy)})
        settings = RankSettings(**found.settings())
        # What node 0 calls by this name is the copy on node 1.
        leader = RankLeader(settings, own=OwnNode(folder=str(other)))
        rank = r"rank 1 on node 1 \(127.0.0.2\)"
        with pytest.raises(ConfigError, match=f"{rank} has other weights than rank 0"):
            leader.load(other, **MODEL)
        leader.load(model, **MODEL)
        shutil.move(other, tmp_path / "elsewhere")
        shutil.move(copy, other)
        with pytest.raises(ConfigError, match=f"{rank}: .*copy"):
            leader.load(other, **MODEL)
        leader.close()


@pytest.mark.parametrize(
    ("victim", "number"),
    [("rank", signal.SIGKILL), ("rank", signal.SIGSTOP), ("node", signal.SIGKILL)],
)
def test_a_host_or_rank_that_is_gone_loses_the_group(
    model: Path, tmp_path: Path, victim: str, number: signal.Signals
) -> None:
    """Requests end by an error with the rank's name, and no process is left."""
    sizes = {"tensor_parallel_size": 2, "nnodes": 2, "distributed_timeout_seconds": 6}
    with hosts(tmp_path, **sizes) as found:
        node = found.start(1)
        with led(found, model, **SHORT_OF_BLOCKS) as home:
            home.engine.add(make_request("one", [5, 6, 7], max_tokens=100))
            drain(home.engine, until=lambda run: run.num_steps == 3)
            rank = int(wait_for_words(found.log_of(1), r"node_follows .*pids=\((\d+),\)"))
            os.kill(rank if victim == "rank" else node.pid, number)
            while not isinstance(event := home.engine.step()[-1], Failed):
                pass  # a rank may live a moment longer than its host's program
            assert isinstance(event.error, RankError)
            assert event.error.rank == 1
            assert home.engine.broken is event.error
        code = node.wait(20)
        assert code == (-signal.SIGKILL if victim == "node" else 1)
        wait_until_gone(rank)


def wait_until_gone(pid: int) -> None:
    assert psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], 10)[1] == []


def test_a_host_outlives_no_node_0_and_joins_the_next(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2) as found:
        node = found.start(1)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = str(model), json.dumps(found.settings())
        with found.log_of(0).open("wb") as log:
            zero = WarmProcess(
                ("tests.fakes.ranks.leader", *words), cwd=tmp_path, env=environment, log=log
            )
        wait_for_words(found.log_of(0), "loaded")
        rank = int(wait_for_words(found.log_of(1), r"node_follows .*pids=\((\d+),\)"))
        zero.kill()
        zero.wait()
        assert node.wait(10) == 1
        wait_until_gone(rank)
        node = found.start(1)  # as a supervisor does
        leaves = threading.Event()
        settings = RankSettings(**found.settings())
        leader = RankLeader(settings, on_leaving=leaves.set)
        monkeypatch.setattr(leader_module, "RankLeader", lambda _settings, **_own: leader)
        monkeypatch.setattr(leader, "close", lambda: None)
        *_, finding = check_ranks(Ranks(tensor_parallel_size=2, nnodes=2))
        assert "2 reach each other on 2 hosts: a sum of 4 KiB takes" in finding.text
        monkeypatch.undo()
        # A host that is told to end asks node 0 to end first.
        node.send_signal(signal.SIGTERM)
        assert leaves.wait(10)
        assert leader.lost is None
        leader.close()
        assert node.wait(10) == 0
