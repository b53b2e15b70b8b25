"""A group whose ranks are on several hosts: here, programs with addresses of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from cli.doctor.ranks import Ranks, check_ranks
from shared.engine.config import EngineConfig
from shared.engine.engine_home import EngineHome
from shared.engine.llm import LLM
from shared.engine.rank_settings import RankSettings, placed_ranks
from shared.engine.ranks import handshake
from shared.engine.ranks import leader as leader_module
from shared.engine.ranks.handshake import OwnNode, show
from shared.engine.ranks.leader import RankLeader
from shared.engine.ranks.meeting import Meeting
from shared.engine.ranks.node import Node
from shared.engine.ranks.socket_channels import GroupSockets
from shared.engine.sequence.events import Failed
from shared.errors import ConfigError, RankError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.rpc.auth import ClusterToken
from shared.version import VERSION
from tests.fakes.engines import drain, make_request
from tests.fakes.every_kind import ALL_KINDS, SHORT_OF_BLOCKS, assert_same, run
from tests.fakes.ports import free_port
from tests.fakes.rank_groups import copies
from tests.fakes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.engines import Run

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


class Hosts:
    """All hosts of a group but the first, which the test's own process is."""

    def __init__(self, folder: Path, **sizes: Any) -> None:
        self._folder = folder
        self.sizes = {"master_port": free_port(), "distributed_timeout_seconds": 15, **sizes}
        self.processes: dict[int, WarmProcess] = {}

    def settings(self, node: int = 0, **other: Any) -> dict[str, Any]:
        return self.sizes | {"node_rank": node} | other

    def start(self, node: int, own: dict[str, Any] | None = None, **other: Any) -> WarmProcess:
        """Start one, with addresses of its own."""
        own = {"host": f"127.0.0.{node + 1}"} | (own or {})
        words = json.dumps(self.settings(node, **other)), json.dumps(own)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log_of(node).open("ab") as log:
            self.processes[node] = WarmProcess(
                ("tests.fakes.rank_node", *words), cwd=self._folder, env=environment, log=log
            )
        return self.processes[node]

    def log_of(self, node: int) -> Path:
        return self._folder / f"node-{node}.log"

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextmanager
def hosts(folder: Path, **sizes: Any) -> Iterator[Hosts]:
    found = Hosts(folder, **sizes)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def led(found: Hosts, model: Path, **settings: Any) -> Iterator[EngineHome]:
    """An engine of the group."""
    with ExitStack() as stack:
        leader = RankLeader(RankSettings(**found.settings()))
        stack.callback(leader.close)
        load = partial(leader.load, **MODEL)
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
        with led(found, model, **ALL_KINDS) as home:
            assert_same(run(home.engine, llm), want)
        for node, process in found.processes.items():
            # Its supervisor starts it again, and it waits for the next node 0.
            assert process.wait(20) == 1
            assert "node 0 has ended" in found.log_of(node).read_text()


class Waiting:
    """Node 0, which waits in a thread for the others."""

    def __init__(self, found: Hosts, token: ClusterToken) -> None:
        self.hosts, self.token = found, token
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        settings = RankSettings(**found.settings())
        own = OwnNode(token=token, settings={"dtype": "float32"})
        self._leader = self._pool.submit(RankLeader, settings, own=own, check=self._check)

    def _check(self) -> None:
        if self._is_over.is_set():
            raise ConfigError("told to end")

    def stop(self) -> None:
        self._is_over.set()
        with pytest.raises(ConfigError, match="told to end"):
            self._leader.result(20)
        self._pool.shutdown()


def token_of(folder: Path, letter: str) -> ClusterToken:
    path = folder / f"token-{letter}"
    path.write_text(letter * 32)
    return ClusterToken(path)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    folder = tmp_path_factory.mktemp("waiting")
    with hosts(folder, tensor_parallel_size=2, nnodes=2) as found:
        waiting = Waiting(found, token_of(folder, "a"))
        yield waiting
        waiting.stop()


def test_hosts_that_do_not_belong_together_are_refused(waiting: Waiting, tmp_path: Path) -> None:
    """By name, at both ends; node 0 goes on to wait for the right ones."""

    def refuse(reason: str, own: OwnNode, **other: Any) -> None:
        settings = RankSettings(**waiting.hosts.settings(1, **other))
        with pytest.raises(ConfigError, match=reason):
            Node(settings, own).follow()

    token = waiting.token
    name = r"node 1 \(127.0.0.1\)"
    refuse(f"{name} has no cluster token, unlike node 0", OwnNode())
    other = OwnNode(token=token_of(tmp_path, "b"))
    refuse(f"{name} has another cluster token than node 0", other)
    own = OwnNode(token=token, settings={"dtype": "bfloat16"})
    refuse(f"{name} has --dtype bfloat16, node 0 has float32", own)
    own = OwnNode(token=token)
    more = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    refuse(f"{name} has --tensor-parallel-size 1, node 0 has 2", own, **more)
    number = r"--node-rank 1 is taken: node 1 is 127.0.0.1"
    with socket.create_connection(("127.0.0.1", waiting.hosts.sizes["master_port"])) as first:
        show(first, replace(own, settings={}), 1)
        refuse(number, own)
    until_s = time.monotonic() + 10
    with ExitStack() as stack:  # it is free again when the first one is gone
        while True:
            again = ("127.0.0.1", waiting.hosts.sizes["master_port"])
            second = stack.enter_context(socket.create_connection(again))
            try:
                show(second, own, 1)
            except ConfigError:
                assert time.monotonic() < until_s
                time.sleep(0.02)
            else:
                break

    patient = RankSettings(**waiting.hosts.settings(1, node_patience_s=0.2))
    before_s = time.monotonic()
    with pytest.raises(ConfigError, match=f"{name} has no cluster token"):
        Node(patient, OwnNode()).follow()
    assert time.monotonic() - before_s >= 0.2

    def be_older() -> None:
        handshake.VERSION = "0.0.1"
        Node(RankSettings(**waiting.hosts.settings(1)), own).follow()

    with (
        copies(be_older) as (older,),
        pytest.raises(ConfigError, match=rf"node 0 runs Baton {VERSION}, node 1 runs 0\.0\.1"),
    ):
        older.result()


def test_a_node_0_that_only_has_its_token_is_refused(tmp_path: Path) -> None:
    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2) as found:
        settings = RankSettings(**found.settings())
        group = GroupSockets(2, 1, 5.0, "127.0.0.1", 1, "127.0.0.1")
        meeting = Meeting(settings, group, OwnNode(), on_lost=print, on_leaving=print)
        with pytest.raises(ConfigError, match="node 0 has no cluster token"):
            Node(RankSettings(**found.settings(1)), OwnNode(token=token_of(tmp_path, "a"))).follow()
        meeting.close()


def test_addresses_that_cannot_be_used_are_named(waiting: Waiting) -> None:
    port = waiting.hosts.sizes["master_port"]
    settings = waiting.hosts.settings()
    with pytest.raises(ConfigError, match=f"node 0 cannot listen at 127.0.0.1:{port}: .*in use"):
        RankLeader(RankSettings(**settings))
    with pytest.raises(ConfigError, match=r"node 0 cannot listen at 192\.0\.2\.1"):
        RankLeader(RankSettings(**settings, master_addr="192.0.2.1"))
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def speak() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")

        speaking = threading.Thread(target=speak)
        speaking.start()
        port = stranger.getsockname()[1]
        node = Node(RankSettings(**waiting.hosts.settings(1, master_port=port)), OwnNode())
        with pytest.raises(ConfigError, match=f"what answers at 127.0.0.1:{port} is no worker"):
            node.follow()
        speaking.join()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"nnodes": 3}, "nnodes 3: 4 ranks .* are divided evenly among 1, 2, 4 hosts"),
        ({"nnodes": 8}, "nnodes 8: 4 ranks"),
        ({"nnodes": 2, "node_rank": 2}, "node_rank must be 0 to 1, not 2"),
        ({"nnodes": 2, "master_port": 0}, "master_port must be 1 to 65535"),
        ({"nnodes": 2, "distributed_executor_backend": "external"}, "so nnodes is 4, not 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RankSettings(tensor_parallel_size=2, pipeline_parallel_size=2, **settings)


def test_external_ranks_find_their_place_in_torchrun_s_variables() -> None:
    settings = RankSettings(tensor_parallel_size=2, distributed_executor_backend="external")
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "77"}
    found = placed_ranks(settings, environment)
    place = found.nnodes, found.node_rank, found.master_addr, found.master_port
    assert place == (2, 1, "10.0.0.1", 77)
    under_torchrun = environment | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert placed_ranks(settings, under_torchrun).master_port == 78
    by_flags = replace(settings, nnodes=2)
    assert placed_ranks(by_flags, environment) == by_flags
    for other, reason in (
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE is 3, and tensor_parallel_size 2 is 2 ranks"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"RANK": "a"}, "RANK, WORLD_SIZE and MASTER_PORT are numbers"),
    ):
        with pytest.raises(ConfigError, match=reason):
            placed_ranks(settings, environment | other)


def test_a_host_waits_for_node_0_until_it_is_told_to_end(tmp_path: Path) -> None:
    with hosts(tmp_path, tensor_parallel_size=2, nnodes=2) as found:
        process = found.start(1)
        wait_for_words(found.log_of(1), "waiting_for_node_0 .*Connection refused")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def wait_for_words(log: Path, pattern: str) -> str:
    """The first group of the pattern, or all of it."""
    until_s = time.monotonic() + 30
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(0.02)
    return found[found.lastindex or 0]


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
                ("tests.fakes.rank_leader", *words), cwd=tmp_path, env=environment, log=log
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
