"""Two workers on a core each, and a router for each placement in front of both.

All three routers run all the time and know the same workers; one is asked at a time. So nothing has
to start between two cells, and each router keeps what it has learnt of the workers. The routers and
the client share the two cores with the workers.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.pareto.bars import MODES
from benchmarks.pareto.choice import BLOCK_SIZE, MAX_MODEL_LEN
from benchmarks.pareto.results import Places
from benchmarks.peers.engines.systems import MAX_NUM_SEQS
from benchmarks.peers.engines.tree import ProcessTree
from benchmarks.peers.serving.base import MODEL_NAME
from cli.errors import CommandError
from cli.processes import ServiceProcess, stop_all
from cli.start.ports import free_port
from cli.start.readiness import ReadinessProbe
from services.router.routing.places.mode import PlacementMode

if TYPE_CHECKING:
    from pathlib import Path

START_S = 180.0
#: Until all blocks of the last cell are free.
IDLE_S = 60.0
GRACE_S = 15.0
KV_BYTES = 1 << 30
WORKERS = ("prefill-0", "decode-0")
_PLACES = {"remote": "handed_over", "split": "split"}


class ParetoCluster:
    """Use as a context manager: leaving it stops every process."""

    def __init__(self, model: Path, folder: Path, cores: tuple[int, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cores = cores
        self._ports = {mode: (free_port(), free_port()) for mode in MODES}
        common = ("--model", str(model), "--served-model-name", MODEL_NAME)
        self._routers = {
            mode: ServiceProcess(
                f"router-{mode}",
                "services.router",
                (*common, "--port", str(port), "--grpc-port", str(grpc), "--placement", mode),
                folder / f"router-{mode}.log",
            )
            for mode, (port, grpc) in self._ports.items()
        }
        directories = ",".join(f"127.0.0.1:{grpc}" for _, grpc in self._ports.values())
        self._metrics_ports = {name: free_port() for name in WORKERS}
        flags = (
            *("--directory", directories, "--host", "127.0.0.1", "--port", "0"),
            *("--num-threads", "1", "--core-lease", "off"),
            *("--kv-cache-memory-bytes", str(KV_BYTES), "--block-size", str(BLOCK_SIZE)),
            *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)),
        )
        self._workers = [
            ServiceProcess(
                name,
                f"services.{name.partition('-')[0]}",
                (*common, "--name", name, *flags, "--metrics-port", str(self._metrics_ports[name])),
                folder / f"{name}.log",
            )
            for name in WORKERS
        ]
        self._http = httpx.Client(trust_env=False, timeout=30.0)
        self._preference = ""

    def __enter__(self) -> ParetoCluster:
        for process in self._processes():
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for tree in self.trees().values():
            tree.resume()
        stop_all(self._processes(), grace_s=GRACE_S)
        self._http.close()

    def url(self, mode: str) -> str:
        """Of the mode's router."""
        return f"http://127.0.0.1:{self._ports[mode][0]}"

    def trees(self) -> dict[str, ProcessTree]:
        """All processes that were started, by name."""
        return {p.name: ProcessTree(p.pid) for p in self._processes() if p.pid is not None}

    def wait_ready(self) -> None:
        """Wait until every router has both workers, and keep each worker on its core.

        Raises:
            CommandError: a process ended, or it took too long.
        """
        deadline_s = time.monotonic() + START_S
        for port, grpc_port in self._ports.values():
            url, directory = f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
            with closing(ReadinessProbe(url=url, directory=directory)) as probe:
                while probe.missing() != () or len(probe.workers()) < len(WORKERS):
                    self.require_running()
                    if time.monotonic() > deadline_s:
                        raise CommandError(f"the cluster is not ready after {START_S:g} s")
                    time.sleep(0.1)
        for name, core in zip(WORKERS, self._cores, strict=True):
            self.trees()[name].pin([core])

    def require_running(self) -> None:
        """Raise CommandError if a process has ended."""
        for process in self._processes():
            process.require_running()

    def prepare(self, mode: str) -> None:
        """Make the workers prefer what the mode wants, and drop what they have cached.

        Aggregated, both prefer decode: neither may stretch the steps of its answers at will.

        Raises:
            CommandError: they do not become idle, or an order is refused.
        """
        self.wait_ready()  # it may have been stopped for a while
        role = "decode" if mode == PlacementMode.AGGREGATED else "prefill"
        if role != self._preference:
            answer = self._http.post(
                f"{self.url(mode)}/v1/workers/prefer", json={"worker": WORKERS[0], "role": role}
            )
            if answer.status_code != httpx.codes.OK:
                raise CommandError(f"{WORKERS[0]} does not prefer {role}: {answer.text}")
            self._preference = role
        deadline_s = time.monotonic() + IDLE_S
        while not self._http.post(f"{self.url(mode)}/reset_prefix_cache").json()["success"]:
            if time.monotonic() > deadline_s:
                raise CommandError(f"blocks of the workers are in use after {IDLE_S:g} s")
            time.sleep(0.1)

    def places(self) -> Places:
        """Count the prompts since the start, by where they were computed."""
        found = {"here": 0, "handed_over": 0, "split": 0}
        for port in self._metrics_ports.values():
            text = self._http.get(f"http://127.0.0.1:{port}/metrics").text
            for family in text_string_to_metric_families(text):
                if family.name == "baton_prefill_place":
                    for sample in family.samples:
                        if sample.name.endswith("_total"):
                            place = _PLACES.get(sample.labels["place"], "here")
                            found[place] += int(sample.value)
        return Places(**found)

    def _processes(self) -> list[ServiceProcess]:
        return [*self._routers.values(), *self._workers]
