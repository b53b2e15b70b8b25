"""The connector suite's harness for connectors of another process, by an endpoint beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.connector.registry import ConnectorSettings
from shared.connector.remote.address import EndpointAddress
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.line import Line
from shared.connector.remote.serve import Endpoint, EndpointSettings, serve_endpoint
from shared.connector.remote.server import EndpointServer
from tests.integration.connector.harnesses import ZmqHarness
from tests.suites.connector.harness import TOKEN

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from shared.connector.base import Offer, OutboundTransfer, Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.limits import TransferLimits
    from shared.errors import RankError
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class RemoteHarness:
    """Connectors behind endpoints: each in a thread of its own, or on the loop of the test."""

    def __init__(self, kind: str, runtime_dir: Path, *, threads: bool = True) -> None:
        self.kind = kind
        self.runtime_dir = runtime_dir
        self._threads = threads
        #: Others of the connectors.
        self.settings: dict[str, Any] = {}
        ZmqHarness()  # starts a thread of ZeroMQ's that stays

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Any:
        settings = ConnectorSettings(runtime_dir=self.runtime_dir, limits=limits, **self.settings)
        return Served(worker, memory, self.kind, settings, threads=self._threads)

    def files(self) -> set[str]:
        return {path.name for path in self.runtime_dir.glob("*")}


class Served:
    """A `RemoteConnector`, its connection and its endpoint, opened and closed as one connector.

    `inner`: the connector in the endpoint, for tests that look behind.
    """

    takes_memory = False

    def __init__(
        self,
        worker: WorkerId,
        memory: KVMemory,
        kind: str,
        settings: ConnectorSettings,
        *,
        threads: bool,
    ) -> None:
        self._worker, self._memory = worker, memory
        self._kind, self._settings, self._threads = kind, settings, threads
        self.name = kind
        self.lost: list[RankError] = []
        self.server: EndpointServer | None = None
        self._endpoint: Endpoint | None = None
        self._is_closed = False

    async def start(self) -> None:
        if self._threads:
            settings = EndpointSettings(rank=1, token=TOKEN, host="127.0.0.1")
            self._endpoint = serve_endpoint(self._memory, settings)
            self.server, address = self._endpoint._server, self._endpoint.address
        else:
            self.server = EndpointServer(
                self._memory,
                ConnectorSettings(endpoint="tcp://127.0.0.1:0"),
                rank=1,
                token=TOKEN,
            )
            await self.server.start()
            address = EndpointAddress(rank=1, address=self.server.address, token=TOKEN)
        self.line = Line(address, on_lost=self.lost.append)
        await self.line.open()
        self.remote = RemoteConnector(
            self.line, self._kind, worker=self._worker, settings=self._settings
        )
        await self.remote.start()
        (self.inner,) = self.server._acts._connectors.values()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self.remote.close()
        await self.line.close()
        if self._endpoint is not None:
            self._endpoint.close()
        elif self.server is not None:
            await self.server.close()
        self.server = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Of the endpoint."""
        assert self._endpoint is not None
        return self._endpoint._loop

    def offer(self) -> Offer:
        return self.remote.offer()

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        outbound = await self.remote.connect(ticket, timeout_s, parts)
        assert self.server is not None
        outbound._link = self.server._acts._outbound[outbound._number]._link
        return outbound

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner if name.startswith("_") else self.remote, name)
