"""One measurement: start everything, wait until it is steady, watch the router, stop everything."""

from __future__ import annotations

import array
import itertools
import json
import os
import re
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.router.checkpoint import model_name
from cli.processes import ServiceProcess, stop_all
from cli.start.ports import free_port
from cli.start.readiness import ReadinessProbe
from shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.router.mock_worker import Arrivals

    Condition = Callable[[ReadinessProbe], bool]

READY_S = 60.0
SAMPLE_S = 0.5
#: Seconds between the last connection and the first number.
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to put on the router."""

    streams: int
    tokens_per_s: float
    workers: int
    arrivals: Arrivals
    endpoint: str
    prompt_chars: int
    max_tokens: int
    ramp_s: float
    duration_s: float
    mock_processes: int
    client_processes: int
    router_flags: tuple[str, ...] = ()
    models: int = 1


@dataclass(slots=True, kw_only=True)
class Measured:
    """Results of one load. Processor time is of all threads, user and system."""

    load: Load
    num_tokens: int = 0
    num_events: int = 0
    num_reads: int = 0
    num_requests: int = 0
    num_failed: int = 0
    router_cpu_s: float = 0.0
    router_user_s: float = 0.0
    clients_cpu_s: float = 0.0
    mocks_cpu_s: float = 0.0
    #: Resident memory of the router's processes at even distances, in MiB.
    rss_mib: list[float] = field(default_factory=list)
    ages_ms: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def tokens_per_s(self) -> float:
        """As the clients received them."""
        return self.num_tokens / self.load.duration_s

    @property
    def cpu_us_per_token(self) -> float:
        """Of the router, requests included."""
        return self.router_cpu_s / max(1, self.num_tokens) * 1e6

    def added_ms(self, percentile: float) -> float:
        """From the worker's hand to the client's."""
        return float(np.percentile(self.ages_ms, percentile)) if len(self.ages_ms) else float("nan")


class Bench:
    """Processes of one measurement. Use as a context manager: leaving it stops them all."""

    def __init__(self, folder: Path, load: Load) -> None:
        self._folder = folder
        self._load = load
        self._port, self._grpc_port = free_port(), free_port()
        self._router_core, self._other_cores = _share_cores()
        self.router = self._process("router", "services.router", self._router_flags())
        self._mocks: list[ServiceProcess] = []
        self._clients: list[ServiceProcess] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_error: object) -> None:
        stop_all([*self._clients, *self._mocks, self.router], grace_s=2.0)

    def measure(self) -> Measured:
        """Run the load.

        Raises:
            UnavailableError: the router or a client did not do its part.
        """
        load = self._load
        self._start(self.router, self._router_core)
        # Before the router listens, every attempt of a worker to join would cost it a second.
        self._wait_until(lambda probe: probe.missing() is not None)
        self._start_mocks()
        self._wait_until(lambda _probe: self._num_ready() == load.workers)
        start_s = time.monotonic() + load.ramp_s + SETTLE_S + 2.0
        results = self._start_clients(start_s)
        measured = Measured(load=load)
        self._watch(start_s, measured)
        self._collect(results, measured)
        return measured

    def _watch(self, start_s: float, measured: Measured) -> None:
        own = psutil.Process(self.router.pid)
        # With --router-processes there are more.
        routers = [own, *own.children(recursive=True)]
        mocks = [psutil.Process(mock.pid) for mock in self._mocks]
        time.sleep(max(0.0, start_s - time.monotonic()))
        before, before_mocks = _times(routers), sum(map(_cpu_s, mocks))
        end_s = start_s + self._load.duration_s
        for number in itertools.count(1):
            measured.rss_mib.append(_memory_mib(routers))
            at_s = min(end_s, start_s + number * SAMPLE_S)
            time.sleep(max(0.0, at_s - time.monotonic()))
            if at_s == end_s:
                break
        after = _times(routers)
        measured.router_user_s = after[0] - before[0]
        measured.router_cpu_s = measured.router_user_s + after[1] - before[1]
        measured.mocks_cpu_s = sum(map(_cpu_s, mocks)) - before_mocks
        measured.rss_mib.append(_memory_mib(routers))

    def _collect(self, results: list[Path], measured: Measured) -> None:
        ages = []
        for client, path in zip(self._clients, results, strict=True):
            if not client.wait(30.0) or client.exit_code:
                raise UnavailableError(f"{client.name} failed: {client.log}")
            counts = json.loads(path.read_text(encoding="utf-8"))
            for name in ("num_events", "num_reads", "num_requests", "num_failed"):
                setattr(measured, name, getattr(measured, name) + counts[name])
            measured.clients_cpu_s += counts["cpu_s"]
            own = array.array("f", path.with_suffix(".ages").read_bytes())
            ages.append(np.frombuffer(own, np.float32))
        measured.ages_ms = np.concatenate(ages)
        measured.num_tokens = len(measured.ages_ms)

    def _num_ready(self) -> int:
        """Workers that have answered the router's canary."""
        url = f"http://127.0.0.1:{self._port}/metrics"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=READY_S) as response:
            found = re.findall(rb'baton_workers_ready{.*role="decode"} (\d+)', response.read())
        return sum(map(int, found))

    def _start_mocks(self) -> None:
        load = self._load
        names = [f"mock-{number}" for number in range(load.workers)]
        for number in range(load.mock_processes):
            flags = [
                "--directory", f"127.0.0.1:{self._grpc_port}",
                "--names", ",".join(names[number :: load.mock_processes]),
                "--step-s", str(1 / load.tokens_per_s),
                "--arrivals", load.arrivals.value,
                "--models", str(load.models),
            ]  # fmt: skip
            mock = self._process(f"mock-{number}", "benchmarks.router.mock_worker", flags)
            self._start(mock, self._other_cores)
            self._mocks.append(mock)

    def _start_clients(self, start_s: float) -> list[Path]:
        load = self._load
        results = []
        for number in range(load.client_processes):
            path = self._folder / f"client-{number}.json"
            share = len(range(number, load.streams, load.client_processes))
            flags = [
                "--port", str(self._port),
                "--endpoint", load.endpoint,
                "--streams", str(share),
                "--prompt-chars", str(load.prompt_chars),
                "--max-tokens", str(load.max_tokens),
                "--ramp-s", str(load.ramp_s),
                "--start-s", str(start_s),
                "--end-s", str(start_s + load.duration_s),
                "--result", str(path),
                "--models", str(load.models),
            ]  # fmt: skip
            client = self._process(f"client-{number}", "benchmarks.router.client", flags)
            self._start(client, self._other_cores)
            self._clients.append(client)
            results.append(path)
        return results

    def _router_flags(self) -> list[str]:
        num = self._load.models
        names = [model_name(number, num) for number in range(num)]
        one = ["--model", str(self._folder), "--served-model-name", *names]
        return [
            *(one if num == 1 else ["--models", *(f"{name}={self._folder}" for name in names)]),
            "--port", str(self._port),
            "--grpc-port", str(self._grpc_port),
            "--placement", "disaggregated",
            "--max-concurrent-requests", str(self._load.streams),
            *self._load.router_flags,
        ]  # fmt: skip

    def _process(self, name: str, module: str, flags: list[str]) -> ServiceProcess:
        return ServiceProcess(name, module, flags, self._folder / f"{name}.log")

    def _start(self, process: ServiceProcess, cores: list[int]) -> None:
        process.start()
        # At once, so that its threads inherit it.
        psutil.Process(process.pid).cpu_affinity(cores)

    def _wait_until(self, condition: Condition) -> None:
        probe = ReadinessProbe(
            url=f"http://127.0.0.1:{self._port}", directory=f"127.0.0.1:{self._grpc_port}"
        )
        deadline_s = time.monotonic() + READY_S
        with ExitStack() as stack:
            stack.callback(probe.close)
            while not condition(probe):
                for process in (self.router, *self._mocks):
                    process.require_running()
                if time.monotonic() > deadline_s:
                    raise UnavailableError(f"not ready after {READY_S} s; see {self._folder}")
                time.sleep(0.1)


def _share_cores() -> tuple[list[int], list[int]]:
    """One core for the router, the others for everything around it."""
    cores: Iterator[int] = iter(sorted(os.sched_getaffinity(0)))
    first = [next(cores)]
    return first, list(cores) or first


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _times(processes: list[psutil.Process]) -> tuple[float, float]:
    """Return user and system seconds of all."""
    times = [process.cpu_times() for process in processes]
    return sum(float(each.user) for each in times), sum(float(each.system) for each in times)


def _memory_mib(processes: list[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20
