"""Hosts of a group meet: those that do not belong together are refused, by name."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.ranks import handshake
from shared.engine.ranks.channels.socket import GroupSockets
from shared.engine.ranks.handshake import OwnNode, show
from shared.engine.ranks.leader import RankLeader
from shared.engine.ranks.meeting import Meeting
from shared.engine.ranks.node import Node
from shared.engine.settings.ranks import POD_VARIABLE, RankSettings, placed_ranks
from shared.errors import ConfigError
from shared.version import VERSION
from tests.fakes.ranks.groups import copies
from tests.fakes.ranks.hosts import Hosts, hosts, token_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.rpc.auth import ClusterToken


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


def test_a_host_s_number_is_at_the_end_of_its_pod_s_name() -> None:
    settings = RankSettings(tensor_parallel_size=2, nnodes=2)
    for pod, number in (("r-baton-decode-3-0", 0), ("r-baton-decode-3-1", 1)):
        assert placed_ranks(settings, {POD_VARIABLE: pod}).node_rank == number
    with pytest.raises(ConfigError, match="node_rank must be 0 to 1, not 2"):
        placed_ranks(settings, {POD_VARIABLE: "r-baton-decode-3-2"})
    with pytest.raises(ConfigError, match="ends with the number of the host, not as 'decode'"):
        placed_ranks(settings, {POD_VARIABLE: "decode"})
    alone = RankSettings(tensor_parallel_size=2)
    assert placed_ranks(alone, {POD_VARIABLE: "r-baton-decode-3-1"}) == alone


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
