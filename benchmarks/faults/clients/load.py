"""Streams that never stop asking, half over HTTP and half with the SDK."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import httpx

from baton_client import AsyncBaton
from benchmarks.faults.clients.stream import HttpClient, Record, SdkClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.faults.clients.ask import Ask
    from benchmarks.faults.clients.stream import Client
    from benchmarks.faults.system.cluster import Cluster

#: Each has one connection of its own.
NUM_SDK_CLIENTS = 4
FAILURE_PAUSE_S = 0.2


class Load:
    """Use as an async context manager; streams ask while it is `flowing`."""

    def __init__(self, cluster: Cluster, asks: Sequence[Ask]) -> None:
        self._cluster = cluster
        self._asks = itertools.cycle(asks)
        self._numbers = itertools.count(1)
        self._gate = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._sdk: list[Client] = []
        #: All since `forget`.
        self.records: list[Record] = []
        self._running: set[str] = set()

    @property
    def running(self) -> list[Record]:
        """Requests that are under way."""
        return [record for record in self.records if record.ended_s is None]

    def flow(self) -> None:
        """Ask."""
        self._gate.set()

    def pause(self) -> None:
        """Ask nothing new; what runs goes on."""
        self._gate.clear()

    def forget(self) -> None:
        """Drop the records of what has ended."""
        self.records = self.running

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether everything ended within the time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.running:
            if asyncio.get_running_loop().time() > deadline_s:
                return False
            await asyncio.sleep(0.02)
        return True

    async def wait_full(self, num_running: int, timeout_s: float) -> None:
        """Wait until so many requests have had their first token at the same time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while sum(bool(record.times_s) for record in self.running) < num_running:
            if asyncio.get_running_loop().time() > deadline_s:
                return
            await asyncio.sleep(0.02)

    def ask(self, ask: Ask, *, victim: bool = False) -> tuple[Record, asyncio.Task[None]]:
        """One request besides, with the SDK; always by the same connection."""
        record = self._record(ask, "v" if victim else "l")
        task = asyncio.create_task(self._sdk[0].run(record))
        return record, task

    async def __aenter__(self) -> Load:
        trust, num_streams = self._cluster.trust, self._cluster.scale.num_streams
        url = f"{trust.scheme}://127.0.0.1:{self._cluster.front_http}"
        limits = httpx.Limits(max_connections=2 * num_streams)
        http = httpx.AsyncClient(trust_env=False, timeout=None, limits=limits, verify=trust.context)
        await self._stack.enter_async_context(http)
        for _ in range(NUM_SDK_CLIENTS):
            address = f"127.0.0.1:{self._cluster.front_grpc}"
            baton = AsyncBaton(address, credentials=trust.credentials)
            self._sdk.append(SdkClient(await self._stack.enter_async_context(baton)))
        clients: list[Client] = []
        for number in range(num_streams // 2):
            clients += [HttpClient(http, url), self._sdk[number % NUM_SDK_CLIENTS]]
        self._tasks = [asyncio.create_task(self._stream(client)) for client in clients]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _stream(self, client: Client) -> None:
        while True:
            await self._gate.wait()
            record = self._record(next(self._asks), "l")
            await client.run(record)
            if record.error is not None:
                await asyncio.sleep(FAILURE_PAUSE_S)

    def _record(self, ask: Ask, kind: str) -> Record:
        record = Record(f"fx{kind}-{next(self._numbers):06}", ask)
        self.records.append(record)
        return record
