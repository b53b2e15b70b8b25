"""Ours as servers: prefill and decode on a core each, or one engine on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.peers.engines.process import PeerError
from benchmarks.peers.engines.systems import KV_CACHE_BYTES, MAX_NUM_SEQS
from benchmarks.peers.engines.tree import ProcessTree
from benchmarks.peers.serving.base import MODEL_NAME, START_TIMEOUT_S
from cli.cluster import Cluster, ClusterSpec
from cli.errors import CommandError
from cli.start.ports import free_port
from shared.version import VERSION

if TYPE_CHECKING:
    from benchmarks.peers.engines.systems import Launch


class BatonServer:
    """A local cluster, pinned once it runs."""

    def __init__(self, spec: ClusterSpec, cores: tuple[int, ...]) -> None:
        self._spec = spec
        self._cores = cores
        self._cluster = Cluster(spec)
        self._cluster.start()

    @property
    def url(self) -> str:
        """The router's."""
        return self._spec.url

    @property
    def trees(self) -> list[ProcessTree]:
        """The router and the workers."""
        pids = [process.pid for process in self._cluster.processes]
        return [ProcessTree(pid) for pid in pids if pid is not None]

    def wait_ready(self) -> None:
        """Wait for every worker, and keep each of two on a core of its own."""
        try:
            self._cluster.wait_ready(lambda _: None)
        except CommandError as error:
            raise PeerError(str(error)) from error
        workers = self.trees[1:]
        if len(workers) > 1:
            for tree, core in zip(workers, self._cores, strict=True):
                tree.pin([core])

    def close(self) -> None:
        """End it."""
        for tree in self.trees:
            tree.resume()
        self._cluster.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatonServing:
    """`baton up`. Aggregated if there are no prefill workers."""

    name: str
    num_prefill: int
    #: Tokens per step; None leaves the default.
    chunk: int | None = None

    def missing(self) -> str | None:
        """It is always there."""
        return None

    def describe(self) -> dict[str, Any]:
        """Version and chunk."""
        return {"version": VERSION, "max_num_batched_tokens": self.chunk or "default"}

    def start(self, launch: Launch) -> BatonServer:
        """A router, and workers with as many threads together as there are cores."""
        flags = [
            "--kv-cache-memory-bytes", str(KV_CACHE_BYTES),
            "--max-model-len", str(launch.max_model_len),
            "--max-num-seqs", str(MAX_NUM_SEQS),
        ]  # fmt: skip
        if self.chunk is not None:
            flags += ["--max-num-batched-tokens", str(self.chunk)]
        folder = launch.folder / self.name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        spec = ClusterSpec(
            model=launch.model,
            served_model_name=MODEL_NAME,
            log_folder=folder,
            port=free_port(),
            grpc_port=free_port(),
            num_prefill=self.num_prefill,
            worker_flags=tuple(flags),
            start_timeout_s=START_TIMEOUT_S,
        )
        return BatonServer(spec, launch.cores)
