"""A cluster of real processes for tests: started, watched, killed and counted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import Request

import grpc
from prometheus_client.parser import text_string_to_metric_families

from baton.v1 import router_pb2_grpc, worker_pb2, worker_pb2_grpc
from shared.address import join_address
from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Process:
    """One service and its log."""

    name: str
    argv: list[str]
    log: Path
    popen: WarmProcess = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start it, or start it again with the same arguments."""
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.popen = WarmProcess(self.argv, cwd=ROOT, env=env, log=log)

    def terminate(self) -> None:
        """Ask it to end, if it runs."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask it to end, and return its exit code."""
        self.terminate()
        return self.popen.wait(timeout_s)

    def kill(self) -> None:
        """End it without warning."""
        self.popen.kill()
        self.popen.wait()

    def check(self) -> None:
        """Fail, with the end of its log, if it is gone."""
        if self.popen.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"{self.name} ended with {self.popen.returncode}:\n{tail}")


class Cluster:
    """One router, and prefill and decode workers on loopback."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        *,
        router_flags: Sequence[str] = (),
        redis_url: str | None = None,
        token: tuple[Path, str] | None = None,
        operator_key: str | None = None,
        placement: str = "disaggregated",
        host: str = "127.0.0.1",
    ) -> None:
        """`token`: file and value of what the cluster's processes share.

        `placement`: most tests are about hand-offs, which an idle cluster may do without.
        """
        self._operator_key = operator_key
        self.model = model
        self._directory = directory
        self.host = host
        self.http_port, self.grpc_port = free_port(), free_port()
        self.workers: dict[str, Process] = {}
        #: Other hosts of workers.
        self.nodes: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        #: How a worker finds its directory.
        self.directory_flags: tuple[str, ...] = ("--directory", self.at(self.grpc_port))
        if redis_url is not None:
            self.directory_flags = ("--redis-url", redis_url)
            router_flags = (*router_flags, *self.directory_flags)
        #: What goes with calls to the cluster's own services.
        self.metadata: tuple[tuple[str, str], ...] = ()
        if token is not None:
            self.metadata = (("baton-cluster-token", token[1]),)
            self.directory_flags += ("--cluster-token", str(token[0]))
            router_flags = (*router_flags, "--cluster-token", str(token[0]))
        self.router = self._process(
            "router",
            "services.router",
            "--model", str(model),
            "--host", host,
            "--port", str(self.http_port),
            "--grpc-port", str(self.grpc_port),
            "--placement", placement,
            *router_flags,
        )  # fmt: skip

    def at(self, port: int | str) -> str:
        """Host and port."""
        return join_address(self.host, port)

    @property
    def url(self) -> str:
        """Base of the HTTP API."""
        return f"http://{self.at(self.http_port)}"

    @property
    def processes(self) -> list[Process]:
        """All of them, workers first: the order in which they are stopped."""
        return [*self.workers.values(), *self.nodes.values(), self.router]

    def add_worker(
        self,
        role: str,
        name: str,
        *flags: str,
        model: Path | None = None,
        stuck_file: Path | None = None,
        damage_file: Path | None = None,
        lease_s: float | None = None,
    ) -> Process:
        """Start a worker; `wait_ready` waits for it. Its engine hangs while `stuck_file` exists.

        `damage_file`: see `tests.fakes.worker.damaged_worker`. `lease_s`: how long the directory
        believes in it without a heartbeat, if not the usual time.
        """
        command = [f"services.{role}"]
        if stuck_file is not None:
            command = ["tests.fakes.worker.stuck_worker", role, str(stuck_file)]
        elif damage_file is not None:
            command = ["tests.fakes.worker.damaged_worker", role, str(damage_file)]
        elif lease_s is not None:
            command = ["tests.fakes.worker.short_lease", str(lease_s), role]
        port = free_port()
        self.addresses[name] = self.at(port)
        self.workers[name] = self._process(
            name,
            *command,
            "--model", str(model or self.model),
            "--name", name,
            "--served-model-name", self.model.name,
            *self.directory_flags,
            "--host", self.host,
            "--port", str(port),
            "--num-threads", "1",
            *flags,
        )  # fmt: skip
        return self.workers[name]

    def add_node(self, name: str, number: int, *flags: str) -> Process:
        """Start another host of a worker. It ends with that, and with an error: see `Node`."""
        self.nodes[f"{name}-host-{number}"] = self._process(
            f"{name}-host-{number}",
            "services.decode",
            "--model", str(self.model),
            "--node-rank", str(number),
            "--num-threads", "1",
            *flags,
        )  # fmt: skip
        return self.nodes[f"{name}-host-{number}"]

    def wait_ready(self, *, num_prefill: int = 1, num_decode: int = 1) -> None:
        """Wait until the router serves, and sends work to this many workers of each kind."""
        deadline = time.monotonic() + START_TIMEOUT_S
        wanted = {"prefill": num_prefill, "decode": num_decode}
        while not (self.is_ready() and self._sends_to(wanted)):
            for process in self.processes:
                process.check()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not ready after {START_TIMEOUT_S} s; logs: {self._directory}"
                )
            time.sleep(0.1)

    def wait_metric(self, metric: str, value: float, **labels: str) -> None:
        """Wait until a sample of the router's is this."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while _sample(Request(f"{self.url}/metrics"), metric, labels) != value:
            for process in self.processes:
                process.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"{metric} {labels} is not {value}; logs: {self._directory}")
            time.sleep(0.1)

    def answers(self) -> bool:
        """Whether the router's gRPC services can be called."""
        try:
            self.num_workers()
        except grpc.RpcError:
            return False
        return True

    def router_stub(self) -> router_pb2_grpc.RouterStub:
        """A blocking client of the router's gRPC service."""
        return router_pb2_grpc.RouterStub(grpc.insecure_channel(self.at(self.grpc_port)))

    def load(self, name: str) -> worker_pb2.GetLoadResponse:
        """What a worker says of its blocks now."""
        with grpc.insecure_channel(self.addresses[name]) as channel:
            stub = worker_pb2_grpc.WorkerStub(channel)
            request = worker_pb2.GetLoadRequest()
            return stub.GetLoad(request, timeout=10, metadata=self.metadata)

    def metric(self, name: str, metric: str, **labels: str) -> float:
        """A sample of a worker that was started with `--metrics-port`; 0 if there is none."""
        port = self.workers[name].argv[self.workers[name].argv.index("--metrics-port") + 1]
        return _sample(Request(f"http://{self.at(port)}/metrics"), metric, labels)

    def router_metric(self, metric: str, **labels: str) -> float:
        """A sample of the router, which asks for no key; 0 if there is none."""
        return _sample(Request(f"{self.url}/metrics"), metric, labels)

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        """Fail unless every worker's blocks return to the baseline in time (I2)."""
        deadline = time.monotonic() + timeout_s
        for name in self.workers:
            while not is_idle(load := self.load(name)):
                if time.monotonic() > deadline:
                    raise AssertionError(f"{name} still holds something:\n{load}")
                time.sleep(0.05)

    def stop(self) -> dict[str, int]:
        """Stop everything; returns the exit codes."""
        for process in self.processes:
            process.terminate()
        codes = {}
        for process in self.processes:
            try:
                codes[process.name] = process.popen.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[process.name] = process.popen.returncode
        return codes

    def _process(self, name: str, module: str, *flags: str) -> Process:
        return Process(name, [module, *flags], self._directory / f"{name}.log")

    def is_ready(self) -> bool:
        """Whether the router says that it can serve."""
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=1) as response:
                return bool(response.status == 200)
        except (URLError, ConnectionError, TimeoutError):
            return False

    def _sends_to(self, wanted: dict[str, int]) -> bool:
        # A worker is known to the directory a moment before the router has checked it.
        request = Request(f"{self.url}/metrics")
        if self._operator_key is not None:
            request.add_header("authorization", f"Bearer {self._operator_key}")
        return all(
            _sample(request, "baton_workers_ready", {"role": role}) >= num
            for role, num in wanted.items()
        )

    def num_workers(self) -> tuple[int, int]:
        """Prefill and decode workers that the router's directory knows."""
        from baton.v1 import common_pb2, directory_pb2, directory_pb2_grpc

        with grpc.insecure_channel(self.at(self.grpc_port)) as channel:
            stub = directory_pb2_grpc.DirectoryStub(channel)
            request = directory_pb2.ListWorkersRequest()
            found = stub.ListWorkers(request, timeout=5, metadata=self.metadata).workers
        roles = [worker.record.role for worker in found]
        return roles.count(common_pb2.ROLE_PREFILL), roles.count(common_pb2.ROLE_DECODE)


def _sample(request: Request, metric: str, labels: dict[str, str]) -> float:
    with urllib.request.urlopen(request, timeout=10) as response:
        lines = response.read().decode().splitlines(keepends=True)
    # To read all of it takes milliseconds, and this is asked over and over.
    text = "".join(line for line in lines if line.startswith(metric))
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric and labels.items() <= sample.labels.items()
    )


def is_idle(load: worker_pb2.GetLoadResponse) -> bool:
    """Whether a worker holds no request, no transfer, and no block that cannot be taken."""
    return (
        load.num_running == load.num_waiting == load.num_receiving == load.num_held == 0
        and load.num_open_transfers == 0
        and load.num_free_blocks == load.num_blocks
    )
