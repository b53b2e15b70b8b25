"""A group whose ranks are on several hosts: here, programs of their own with addresses of theirs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.config import EngineConfig
from shared.engine.engine_home import EngineHome
from shared.engine.llm import LLM
from shared.engine.rank_settings import RankSettings
from shared.engine.ranks.leader import RankLeader
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.every_kind import ALL_KINDS, assert_same, run
from tests.fakes.ports import free_port
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
