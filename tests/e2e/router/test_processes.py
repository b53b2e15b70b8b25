"""One router of two processes: limits that are counted once, and the death of one of them."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cli.cluster import ClusterSpec
from cli.places import ROOT
from cli.start.ports import free_port, is_free
from services.router.openai.auth import DASHBOARD_EVENTS_PATH, DASHBOARD_REQUEST_PATH
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.reliability.test_replay import until
from tests.e2e.stream import WAIT_S
from tests.fakes.processes.warm_cluster import WarmCluster
from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_TOKENS = 300
MAX_RUNNING, MAX_QUEUED = 4, 2
MODEL = "tiny"
LIMITS = ("--max-concurrent-requests", str(MAX_RUNNING), "--max-queued-requests", str(MAX_QUEUED))
#: Of the present test.
CLIENTS: list[httpx.Client] = []


@pytest.fixture(scope="module")
def cluster(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmCluster]:
    """The last test stops its router."""
    spec = ClusterSpec(
        model=checkpoint,
        served_model_name=MODEL,
        log_folder=tmp_path_factory.mktemp("processes"),
        port=free_port(),
        grpc_port=free_port(),
        num_prefill=0,
        worker_flags=ENGINE_FLAGS,
        router_flags=("--router-processes", "2", *LIMITS),
    )
    with WarmCluster(spec) as cluster:
        cluster.start()
        cluster.wait_ready(lambda _: None)
        yield cluster
    assert cluster.killed == []
    assert is_free("127.0.0.1", spec.port)
    assert is_free("127.0.0.1", spec.grpc_port)


@pytest.fixture(autouse=True)
def no_client_is_left_open() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def serving(cluster: WarmCluster) -> list[int]:
    """The processes that listen on the router's port."""
    port = cluster.spec.port
    return [pid for pid in processes(cluster) if _inodes(pid) & _sockets(port, 0)]


def processes(cluster: WarmCluster) -> list[int]:
    pid = cluster.routers[0].pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _sockets(port: int, peer: int) -> set[str]:
    """The inodes of sockets of the port, with this port at the other end."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(fields[place].split(":")[1], 16) for place in (1, 2)] == [port, peer]:
            found.add(f"socket:[{fields[9]}]")
    return found


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(file.readlink()))
    except FileNotFoundError:
        pass
    return found


class Asker:
    """A client with one connection, and the process that has its other end."""

    def __init__(self, cluster: WarmCluster) -> None:
        self.http = httpx.Client(
            base_url=cluster.spec.url, trust_env=False, verify=False, timeout=WAIT_S
        )
        CLIENTS.append(self.http)
        reply = self.http.get("/version")
        peer = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
        own = _sockets(cluster.spec.port, peer)
        [self.pid] = [pid for pid in processes(cluster) if _inodes(pid) & own]
        self.status = 0
        self.num_seen = 0
        self.text = ""
        self.usage: dict[str, int] = {}
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> Asker:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def wait(self) -> None:
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()

    @property
    def has_begun(self) -> bool:
        assert self.status in {0, 200}, self.status
        assert self.error is None, self.error
        return self.num_seen > 0

    @property
    def is_whole(self) -> bool:
        return self.error is None and self.usage.get("completion_tokens") == NUM_TOKENS

    def _run(self) -> None:
        body = {
            "model": MODEL,
            "prompt": "hello",
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with self.http.stream("POST", "/v1/completions", json=body) as reply:
                self.status = reply.status_code
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.error = error

    def _take(self, event: dict[str, object]) -> None:
        for choice in event["choices"]:  # type: ignore[attr-defined]
            self.text += choice["text"]
            self.num_seen += 1
        if event.get("usage"):
            self.usage = event["usage"]  # type: ignore[assignment]


def askers(cluster: WarmCluster, each: int) -> dict[int, list[Asker]]:
    """So many of each process: the system distributes connections as it likes."""
    until(lambda: len(serving(cluster)) == 2, "both processes listen")
    found: dict[int, list[Asker]] = {pid: [] for pid in serving(cluster)}
    while any(len(own) < each for own in found.values()):
        asker = Asker(cluster)
        own = found[asker.pid]
        if len(own) < each:
            own.append(asker)
        else:
            asker.http.close()
    return found


def page(cluster: WarmCluster, pid: int) -> Asker:
    """A client of this process."""
    while (asker := Asker(cluster)).pid != pid:
        asker.http.close()
    return asker


def rows(asker: Asker) -> list[dict[str, Any]]:
    """The answered requests on the page of the asker's process, of its last two."""
    with asker.http.stream("GET", DASHBOARD_EVENTS_PATH) as reply:
        data = next(line for line in reply.iter_lines() if line.startswith("data: "))
    requests = json.loads(data.removeprefix("data: "))["tick"]["requests"]
    return [row for row in requests if row["completion_tokens"] == NUM_TOKENS][-2:]


def metrics(asker: Asker) -> dict[str, float]:
    """Sums over all labels."""
    found: dict[str, float] = {}
    for line in asker.http.get("/metrics").text.splitlines():
        match = re.match(r"([a-z_]+)(?:{.*})? ([-+.\de]+)$", line)
        if match:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


@contextmanager
def frozen(cluster: WarmCluster) -> Iterator[None]:
    """The worker computes nothing meanwhile."""
    [worker] = cluster.workers
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


def counts(asker: Asker) -> tuple[float, float]:
    """Requests that run, and that wait."""
    found = metrics(asker)
    return found["baton_num_requests_running"], found["baton_num_requests_waiting"]


def test_limits_hold_over_both_processes_and_the_death_of_one_gives_its_part_back(
    cluster: WarmCluster,
) -> None:
    (killed, theirs), (alive, ours) = askers(cluster, 5).items()
    flood_and_kill(cluster, killed, theirs, ours)
    # The one that was killed is started again, and knows the worker before it listens.
    until(lambda: len(serving(cluster)) == 2, "there are two processes again")
    assert alive in serving(cluster)
    assert killed not in serving(cluster)
    again = [own for [own] in askers(cluster, 1).values()]
    for each in again:
        each.start()
    for each in again:
        each.wait()
        assert each.is_whole, each.error
    for each in again:
        check_page(cluster, each.pid)
    # Both say the same of all: nothing that was said before has gone.
    for [each] in askers(cluster, 1).values():
        found = metrics(each)
        each.http.close()
        assert found["baton_request_success_total"] == 5
        assert found["baton_requests_refused_total"] == 2
        assert found["baton_generation_tokens_total"] >= 5 * NUM_TOKENS
        assert found["baton_workers_ready"] == 1
    log = cluster.routers[0].log.read_text()
    assert re.search(r"router_process_ended.*exit_code=-9", log)
    assert "Traceback" not in log


def flood_and_kill(
    cluster: WarmCluster, killed: int, theirs: list[Asker], ours: list[Asker]
) -> None:
    """Fill all places and the queue from both processes; kill the one of `theirs`."""
    watch = ours.pop()
    running = [theirs[0].start(), ours[0].start()]
    until(lambda: all(each.has_begun for each in running), "both processes answer")
    with frozen(cluster):
        running += [theirs[1].start(), theirs[2].start()]
        until(lambda: counts(watch) == (MAX_RUNNING, 0), "all places are taken")
        waiting = [ours[1].start(), ours[2].start()]
        until(lambda: counts(watch) == (MAX_RUNNING, MAX_QUEUED), "the queue is full")
        # Each process has less than the limit, and neither lets one more in.
        for each in (theirs[3].start(), ours[3].start()):
            each.wait()
            assert each.status == 429
        assert counts(watch) == (MAX_RUNNING, MAX_QUEUED)
        load = [asker.http.get("/load").json() for asker in (watch, theirs[4])]
        assert load == [{"server_load": MAX_RUNNING}] * 2

        os.kill(killed, signal.SIGKILL)
        # What it held comes back, and what waits gets in.
        until(lambda: counts(watch) == (3, 0), "its places are free")
        for each in theirs[:3]:
            each.wait()
            assert not each.is_whole
    for each in (ours[0], *waiting):
        each.wait()
        assert each.is_whole, each.error
        assert each.text == ours[0].text
    until(lambda: counts(watch) == (0, 0), "nothing is counted")
    watch.http.close()


def check_page(cluster: WarmCluster, pid: int) -> None:
    """The page of each process shows what both have answered, and any process explains it."""
    look = page(cluster, pid)
    until(lambda: len(rows(look)) >= 2, "the page has both")
    for row in rows(look):
        detail = look.http.get(DASHBOARD_REQUEST_PATH, params={"number": row["number"]})
        assert detail.status_code == 200, detail.text
        assert detail.json()["row"] == row
        assert detail.json()["timings"]["decode_worker"] == "decode-0"
    look.http.close()


def test_a_port_in_use_is_an_error(cluster: WarmCluster, tmp_path: Path) -> None:
    spec = cluster.spec
    for flags in (
        ("--port", str(spec.port), "--grpc-port", "0"),
        ("--port", "0", "--grpc-port", str(spec.grpc_port)),
    ):
        argv = ("services.router", "--model", str(spec.model), "--router-processes", "2", *flags)
        path = tmp_path / "log"
        with path.open("wb") as log:
            second = WarmProcess(argv, cwd=ROOT, env=cluster.routers[0].environ, log=log)
            assert second.wait(WAIT_S) == 2
        text = path.read_text()
        assert re.fullmatch(r"router cannot start: cannot listen on .*: Address already.*\n", text)


def test_a_stop_lets_the_requests_of_both_processes_finish(cluster: WarmCluster) -> None:
    streams = [own for [own] in askers(cluster, 1).values()]
    for each in streams:
        each.start()
    until(lambda: all(each.has_begun for each in streams), "both processes answer")
    router = cluster.routers[0]
    all_of_them = processes(cluster)
    assert len(all_of_them) == 3
    router.ask_to_stop()
    for each in streams:
        each.wait()
        assert each.is_whole, each.error
    assert router.wait(WAIT_S)
    assert router.exit_code == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in all_of_them)
