"""A real cluster as processes: Redis, two routers, two prefill and two decode workers.

Whatever two of them say to each other passes a proxy of this process (`wire/`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
import httpx
import redis.asyncio

from baton.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from benchmarks.faults.process import Process, launch
from benchmarks.faults.system.model import (
    DRAIN_GRACE_S,
    MODEL_NAME,
    NICENESS,
    OWN_FLAGS,
    WORKER_FLAGS,
)
from benchmarks.faults.system.network import Loopback, Namespaces
from benchmarks.faults.system.scale import FULL
from benchmarks.faults.system.trust import Trust
from benchmarks.faults.wire.connection import Channel
from benchmarks.faults.wire.hub import Hub
from cli.places import python_command
from cli.start.ports import free_port
from shared.rpc.wire import role_from_wire

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.faults.process import Launch
    from benchmarks.faults.system.network import Network
    from benchmarks.faults.system.scale import Scale

ROUTERS = ("router-0", "router-1")
PREFILL = ("prefill-0", "prefill-1")
DECODE = ("decode-0", "decode-1")
WORKERS = (*PREFILL, *DECODE)
REDIS = "redis"
NAMES = (REDIS, *ROUTERS, *WORKERS)
#: Of a worker, in some faults.
MAX_RANKS = 2
START_TIMEOUT_S = 120.0
NUM_READY = 2


class ClusterError(Exception):
    """The cluster itself does not come up; the message holds the end of a log."""


class Cluster:
    """Use as an async context manager. Names are those of `NAMES`."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        *,
        namespaces: bool,
        encrypted: bool = False,
        scale: Scale = FULL,
        launch: Launch = launch,
    ) -> None:
        """`encrypted`: by TLS. `launch` starts each process."""
        self.folder, self.encrypted = folder, encrypted
        self._model = model
        self.scale, self._launch = scale, launch
        self._extra: dict[str, list[str]] = {}
        #: By worker: the port of its proxy for the blocks of rank 0; further ranks are behind it.
        self._transfer_fronts: dict[str, int] = {}
        self.network: Network = Namespaces(NAMES) if namespaces else Loopback(self._pids)
        self.hub = Hub(self.network.source_of)
        self.processes: dict[str, Process] = {}
        self.http_ports: dict[str, int] = {}
        self.grpc_ports: dict[str, int] = {}
        self.front_http = self.front_grpc = self.redis_port = 0
        self._redis_url = ""
        #: By role: what its processes run from their next start on, instead of the service.
        self.modules: dict[str, str] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        hosts = {at(name) for name in NAMES for at in (self.network.host, self.network.proxy_host)}
        self.trust = Trust(folder, sorted(hosts) if encrypted else None)
        self._http = httpx.AsyncClient(trust_env=False, timeout=3, verify=self.trust.context)

    async def __aenter__(self) -> Cluster:
        try:
            await self._define()
            for process in self.processes.values():
                process.start()
            await self.wait_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for channel in self._channels.values():
            await channel.close()
        await self._http.aclose()
        await self.hub.close()
        self.network.close()

    def of_role(self, role: str) -> tuple[str, ...]:
        """Names of the processes of a kind."""
        return tuple(name for name in NAMES if _role(name) == role)

    def restart(self, name: str, *flags: str, module: str | None = None) -> None:
        """Start it again at the same ports; `flags` and `module` for this time only."""
        process = self.processes[name]
        process.kill()
        own = flags or module or self.modules.get(_role(name))
        command = [*self._command(name, module), *flags] if own else None
        process.start(command and self.network.command(name, command))

    async def add_host(self, worker: str, *flags: str) -> None:
        """Start another host of a worker, which has its last rank. It has a name of its own.

        Peers reach its blocks by a proxy; the hosts of one worker speak past all proxies.
        """
        name, rank = host_of(worker), MAX_RANKS - 1
        if name not in self.grpc_ports:
            self.network.add(name)
            self.grpc_ports[name] = self._port(name)
            place = (name, (self.network.host(name), self.http_ports[worker] + rank))
            front = self._transfer_fronts[worker] + rank
            await self.hub.open(self.network.proxy_host(name), Channel.ZMQ, place, port=front)
            self._extra[name] = ["--advertise-host", self.network.proxy_host(name)]
        self._add(name, [*self._command(name, None), *flags], self._redis_url)
        self.processes[name].start()

    def remove_host(self, worker: str) -> None:
        """End another host of a worker."""
        self.processes.pop(host_of(worker)).kill()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until both routers can use all workers.

        Raises:
            ClusterError: a process ended, or it took too long.
        """
        deadline_s = time.monotonic() + timeout_s
        # Twice: a router may not have heard yet that a worker has come back as another.
        num_ready = 0
        while (num_ready := num_ready + 1 if await self._ready() else 0) < NUM_READY:
            for process in self.processes.values():
                if not process.running:
                    code = process.exit_code
                    raise ClusterError(f"{process.name} ended with {code}:\n{process.tail()}")
            if time.monotonic() > deadline_s:
                raise ClusterError(f"not ready after {timeout_s} s; logs: {self.folder}")
            await asyncio.sleep(0.1)
        for process in self.processes.values():
            process.come_forward()

    async def load(self, name: str) -> worker_pb2.GetLoadResponse:
        """What a worker says of itself now."""
        return await self._worker(name).GetLoad(worker_pb2.GetLoadRequest(), timeout=5)

    async def incarnation(self, name: str) -> str:
        """Return the incarnation of a worker."""
        info = await self._worker(name).GetInfo(worker_pb2.GetInfoRequest(), timeout=5)
        return info.peer.worker.incarnation

    async def prefer(self, name: str, role: str) -> None:
        """Have a worker prefer a role."""
        wanted = {"prefill": common_pb2.ROLE_PREFILL, "decode": common_pb2.ROLE_DECODE}[role]
        await self._worker(name).Prefer(worker_pb2.PreferRequest(role=wanted), timeout=5)

    async def preference(self, name: str) -> str:
        """Return the role that a worker prefers; empty: it does not say."""
        return role_from_wire((await self.load(name)).preference) or ""

    async def forget_prefixes(self) -> None:
        """Empty every prefix cache, so that prompts are computed and sent again."""
        request = worker_pb2.ResetPrefixCacheRequest()
        for name in WORKERS:
            await self._worker(name).ResetPrefixCache(request, timeout=5)

    async def metric(self, router: str, name: str) -> float:
        """The sum of a metric's samples on one router; 0 if it does not answer."""
        try:
            reply = await self._http.get(f"{self.router_url(router)}/metrics")
        except httpx.HTTPError:
            return 0.0
        lines = [line for line in reply.text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def redis_keys(self) -> set[str]:
        """All that Baton has stored there."""
        async with self.redis() as client:
            return {str(key) for key in await client.keys("baton:*")}

    async def forget_keys(self, keys: set[str]) -> None:
        """Delete keys in Redis."""
        async with self.redis() as client:
            await client.delete(*keys)

    async def let_redis_time_pass(self, seconds: float) -> None:
        """Every lease ends that much earlier."""
        async with self.redis() as client:
            for key in await client.keys("baton:*"):
                left_ms = await client.pttl(key)
                if left_ms >= 0:
                    await client.pexpire(key, max(0, int(left_ms - seconds * 1000)))

    def router_url(self, name: str) -> str:
        """A router's own HTTP address."""
        return f"{self.trust.scheme}://{self.network.host(name)}:{self.http_ports[name]}"

    def _worker(self, name: str) -> worker_pb2_grpc.WorkerAsyncStub:
        channel = self._channels.get(name)
        if channel is None:
            options = [
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
            ]
            address = f"{self.network.host(name)}:{self.grpc_ports[name]}"
            channel = self._channels[name] = self.trust.channel(address, options)
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        return stub

    async def _ready(self) -> bool:
        """Whether every worker is in Redis as who it is now, and every router may use it."""
        if not await self._registered():
            return False
        for router in ROUTERS:
            if await self.metric(router, "baton_workers_ready") != len(WORKERS):
                return False
        return True

    async def _registered(self) -> bool:
        try:
            async with self.redis() as client:
                for name in WORKERS:
                    known = await client.hget(f"baton:worker:{name}", "incarnation")
                    if known != await self.incarnation(name):
                        return False
        except (redis.asyncio.RedisError, grpc.RpcError):
            return False
        return True

    def redis(self) -> redis.asyncio.Redis:
        """Return a client past all proxies; use as a context manager."""
        return redis.asyncio.Redis(
            host=self.network.host(REDIS),
            port=self.redis_port,
            socket_timeout=3,
            decode_responses=True,
        )

    async def _define(self) -> None:
        host = self.network.host
        self.redis_port = self._port(REDIS)
        redis_proxy = await self._proxy(REDIS, Channel.REDIS, self.redis_port)
        command = [
            "/usr/bin/env", "redis-server", "--port", str(self.redis_port), "--bind", host(REDIS),
            "--protected-mode", "no", "--dir", str(self.folder), "--save", "", "--appendonly", "no",
        ]  # fmt: skip
        self._add(REDIS, command)
        redis_url = self._redis_url = f"redis://{self.network.proxy_host(REDIS)}:{redis_proxy}/0"
        for name in ROUTERS:
            self.http_ports[name], self.grpc_ports[name] = self._port(name), self._port(name)
            self._add(name, self._command(name, None), redis_url)
        for name in WORKERS:
            self.grpc_ports[name] = self._port(name)
            self.http_ports[name] = self._port(name)
            self._add(name, await self._worker_command(name), redis_url)
        self.front_http = await self._front(self.http_ports)
        self.front_grpc = await self._front(self.grpc_ports)

    async def _front(self, ports: Mapping[str, int]) -> int:
        """One address for clients, as a balancer gives it: routers in turn, dead ones left out."""
        places = [(name, (self.network.host(name), ports[name])) for name in ROUTERS]
        return await self.hub.open("127.0.0.1", Channel.CLIENT, *places)

    async def _proxy(self, name: str, channel: Channel, port: int, *, at: int = 0) -> int:
        place = (name, (self.network.host(name), port))
        return await self.hub.open(self.network.proxy_host(name), channel, place, port=at)

    async def _row_of_proxies(self, name: str, port: int) -> int:
        """Return the first of ports in a row, one for each rank that a worker may have."""
        while True:
            first = await self._proxy(name, Channel.ZMQ, port)
            with suppress(OSError):  # another program's: this first one is left unused
                for rank in range(1, MAX_RANKS):
                    await self._proxy(name, Channel.ZMQ, port + rank, at=first + rank)
                return first

    async def _worker_command(self, name: str) -> list[str]:
        transfer = self.http_ports[name]
        front = await self._proxy(name, Channel.GRPC, self.grpc_ports[name])
        pieces = self._transfer_fronts[name] = await self._row_of_proxies(name, transfer)
        self._extra[name] = [
            "--transfer-port", str(transfer),
            "--advertise-host", self.network.proxy_host(name),
            "--advertise-port", str(front),
            "--advertise-transfer-port", str(pieces),
        ]  # fmt: skip
        return self._command(name, None)

    def _command(self, name: str, module: str | None) -> list[str]:
        role = _role(name)
        # Addresses of namespaces are this machine's own, though no loopback.
        flags = ["--model", str(self._model), "--host", self.network.host(name), "--insecure-bind"]
        if role == "router":
            flags += [
                "--port", str(self.http_ports[name]), "--grpc-port", str(self.grpc_ports[name]),
                "--placement", "disaggregated",
                "--max-concurrent-requests", str(self.scale.max_concurrent_requests),
                "--drain-grace-s", str(DRAIN_GRACE_S),
            ]  # fmt: skip
        else:
            flags += ["--name", name, "--served-model-name", MODEL_NAME, *WORKER_FLAGS]
            flags += ["--num-blocks", str(self.scale.num_blocks)]
            flags += ["--port", str(self.grpc_ports[name]), *OWN_FLAGS[role]]
        flags += [*self.trust.flags(role), *self._extra.get(name, ())]
        module = module or self.modules.get(role, f"services.{role}")
        return [*python_command(module), *flags]

    def _add(self, name: str, command: Sequence[str], redis_url: str | None = None) -> None:
        role = _role(name)
        environ = {"BATON_REDIS_URL": redis_url, **self.trust.environ(role)} if redis_url else {}
        log = self.folder / f"{name}.log"
        log.write_bytes(b"")
        command, niceness = self.network.command(name, command), NICENESS.get(role, 0)
        self.processes[name] = Process(
            name, command, log, environ, niceness=niceness, launch=self._launch
        )

    def _port(self, name: str) -> int:
        """Return a port for a process; in namespaces no other process gets the same one."""
        if isinstance(self.network, Namespaces):
            return next(_PORTS)
        return free_port()

    def _pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.processes.items() if process.running}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[name].send(number)


def host_of(worker: str) -> str:
    """Return the name of the other host of a worker, where it has one."""
    return f"{worker}-host"


def _role(name: str) -> str:
    return name.partition("-")[0]


_PORTS = itertools.count(20_000)
