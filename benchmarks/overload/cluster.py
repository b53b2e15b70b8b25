"""One router, one prefill and one decode worker, with a small model of random weights."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from baton.v1 import worker_pb2, worker_pb2_grpc
from benchmarks.overload.tenants import write_keys
from cli.processes import ServiceProcess, stop_all
from cli.start.ports import free_port
from cli.start.readiness import ReadinessProbe
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

START_S = 120.0
VOCAB_SIZE = 4096
#: Large enough that a request is work, small enough that two cores serve some dozen a second.
MODEL = CheckpointSpec(
    architecture="qwen3",
    num_layers=6,
    hidden_size=384,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=1024,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=2048,
)
WORKER_FLAGS = (
    "--num-blocks", "1024",
    "--max-num-batched-tokens", "512",
    "--connectors", "shm",
    "--dtype", "float32",
    "--num-threads", "1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverloadCluster:
    """What runs, and where."""

    url: str
    processes: tuple[ServiceProcess, ...]
    #: By the workers' names.
    addresses: dict[str, str]
    #: By the tenants' names.
    keys: Mapping[str, str]

    def loads(self) -> dict[str, worker_pb2.GetLoadResponse]:
        """What every worker holds now."""
        loads = {}
        for name, address in self.addresses.items():
            with grpc.insecure_channel(address) as channel:
                stub = worker_pb2_grpc.WorkerStub(channel)
                loads[name] = stub.GetLoad(worker_pb2.GetLoadRequest(), timeout=10)
        return loads

    def num_leaked_blocks(self, timeout_s: float = 10.0) -> int:
        """Return the number of blocks that are still not free after all requests have ended.

        Waits up to `timeout_s` for them to become free.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            loads = self.loads().values()
            leaked = sum(load.num_blocks - load.num_free_blocks for load in loads)
            if not leaked or time.monotonic() > deadline_s:
                return leaked
            time.sleep(0.1)


@contextmanager
def running(folder: Path, *, max_ttft_ms: float | None) -> Iterator[OverloadCluster]:
    """Logs and the model are in `folder`."""
    model = folder / "model"
    if not model.exists():
        write_random_checkpoint(model, MODEL)
    keys = write_keys(folder / "keys.toml")
    port, grpc_port = free_port(), free_port()
    url, directory = f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
    common = ("--model", str(model), "--served-model-name", "overload")
    router = ServiceProcess(
        "router",
        "services.router",
        (
            *common,
            *("--port", str(port), "--grpc-port", str(grpc_port)),
            *("--placement", "disaggregated"),
            *(() if max_ttft_ms is None else ("--max-ttft-ms", f"{max_ttft_ms:g}")),
            # Only this machine can reach the router, so workers join without a token.
            *("--api-keys", str(folder / "keys.toml"), "--insecure-bind"),
        ),
        folder / "router.log",
    )
    workers = [
        ServiceProcess(
            name,
            f"services.{name}",
            (*common, "--name", name, "--directory", directory, *WORKER_FLAGS),
            folder / f"{name}.log",
        )
        for name in ("prefill", "decode")
    ]
    processes = (router, *workers)
    try:
        for process in processes:
            process.start()
        with closing(ReadinessProbe(url=url, directory=directory)) as probe:
            addresses = _wait(probe, processes)
        yield OverloadCluster(url, processes, addresses, keys)
    finally:
        stop_all(processes, grace_s=15)


def _wait(probe: ReadinessProbe, processes: tuple[ServiceProcess, ...]) -> dict[str, str]:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        for process in processes:
            process.require_running()
        found = {w.record.worker.name: w.record.address for w in probe.workers()}
        if probe.missing() == () and len(found) == len(processes) - 1:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"the cluster is not ready after {START_S:g} s")
