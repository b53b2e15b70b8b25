"""What is asked in a cell: a placement of our cluster, or vLLM beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from benchmarks.pareto.bars import MODES
from benchmarks.pareto.choice import MAX_MODEL_LEN
from benchmarks.peers.engines.systems import Launch
from benchmarks.peers.serving.vllm import VllmAggregated, VllmDisaggregated

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.pareto.cluster import ParetoCluster
    from benchmarks.pareto.results import Places
    from benchmarks.peers.engines.tree import ProcessTree
    from benchmarks.peers.serving.base import Server, ServingSystem

PEERS: Mapping[str, ServingSystem] = {
    "vllm": VllmAggregated(),
    "vllm P/D": VllmDisaggregated(),
}


class Asked(Protocol):
    """A system that runs."""

    @property
    def url(self) -> str:
        """Base of OpenAI's API, without `/v1`."""

    def prepare(self) -> None:
        """Begin a cell: nothing is cached, nothing runs."""

    def places(self) -> Places | None:
        """Prompts since the start, by where they were computed; None: it does not say."""

    def trees(self) -> Mapping[str, ProcessTree]:
        """Its processes, by name."""


class AskedMode:
    """One placement. All of them share a cluster."""

    def __init__(self, cluster: ParetoCluster, mode: str) -> None:
        self._cluster = cluster
        self._mode = mode

    @property
    def url(self) -> str:
        """See Asked."""
        return self._cluster.url(self._mode)

    def prepare(self) -> None:
        """See Asked. Raises as `ParetoCluster.prepare`."""
        self._cluster.prepare(self._mode)

    def places(self) -> Places | None:
        """See Asked."""
        return self._cluster.places()

    def trees(self) -> Mapping[str, ProcessTree]:
        """See Asked. The routers of other modes, too: idle, they take a little."""
        return self._cluster.trees()


class AskedPeer:
    """One of vLLM's, which runs beside our cluster and is stopped while that is asked."""

    def __init__(self, name: str, server: Server) -> None:
        self._name = name
        self._server = server

    @property
    def url(self) -> str:
        """See Asked."""
        return self._server.url

    def prepare(self) -> None:
        """No prompt of another cell begins as one of this."""

    def places(self) -> Places | None:
        """It does not say."""
        return None

    def trees(self) -> Mapping[str, ProcessTree]:
        """See Asked."""
        return {f"{self._name}-{i}": tree for i, tree in enumerate(self._server.trees)}


def start_peer(name: str, model: Path, folder: Path, cores: tuple[int, int]) -> Server:
    """Start one; it loads while the caller does something else."""
    launch = Launch(model=model, cores=cores, folder=folder, max_model_len=MAX_MODEL_LEN)
    return PEERS[name].start(launch)


def missing_peers(names: tuple[str, ...]) -> dict[str, str]:
    """Return why those that cannot run here cannot."""
    reasons = {name: PEERS[name].missing() for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def all_names(with_peers: bool) -> tuple[str, ...]:
    """Return the names of the systems, ours first."""
    return (*MODES, *PEERS) if with_peers else MODES
