"""The hosts of a group but the first: programs of their own, with addresses of loopback."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shared.rpc.auth import ClusterToken
from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
                ("tests.fakes.ranks.node", *words), cwd=self._folder, env=environment, log=log
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


def wait_for_words(log: Path, pattern: str) -> str:
    """The first group of the pattern, or all of it."""
    until_s = time.monotonic() + 30
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(0.02)
    return found[found.lastindex or 0]


def token_of(folder: Path, letter: str) -> ClusterToken:
    path = folder / f"token-{letter}"
    path.write_text(letter * 32)
    return ClusterToken(path)
