"""An endpoint in a thread of its own, for a process whose own thread computes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.address import join_address
from shared.connector.registry import ConnectorSettings
from shared.connector.remote.address import TIMEOUT_S, EndpointAddress
from shared.connector.remote.server import EndpointServer

if TYPE_CHECKING:
    from shared.kv.memory import KVMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """What a rank of another host needs to serve its blocks. Rank 0 decides about all else."""

    rank: int
    #: The group's secret, at least 16 random bytes: only rank 0 of the group can connect.
    token: bytes = field(repr=False)
    #: The address of this host, or its interface, to listen at: for rank 0, and by the connectors
    #: for peers.
    host: str
    #: The name by which peers reach this host, if it is another one; rank 0 too, if `host` means
    #: all addresses (0.0.0.0), which need it.
    advertise_host: str | None = None
    #: An end that is silent for so long is lost, and the group with it: the group's time-out.
    timeout_s: float = TIMEOUT_S


class Endpoint:
    """A served endpoint. Close it before its memory."""

    def __init__(
        self,
        address: EndpointAddress,
        server: EndpointServer,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        stop: asyncio.Event,
    ) -> None:
        """Own a server, which runs on this loop, in this thread, until `stop`."""
        self.address = address
        self._server = server
        self._loop = loop
        self._thread = thread
        self._stop = stop

    def close(self) -> None:
        """Abort every transfer and end the thread. After it no block is accessed. Idempotent.

        It waits for peers that may still write or read, as `Connector.close` does: at most for the
        time-outs of `TransferLimits`.
        """
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def serve_endpoint(memory: KVMemory, settings: EndpointSettings) -> Endpoint:
    """Serve the connectors of `memory` to rank 0, which makes them: see `RemoteConnector`.

    Returns when the endpoint listens. All else is done by a thread with an event loop of its own;
    it ends with `close`. Which blocks are written and read is decided by rank 0, whose pool owns
    them: a step and a transfer never write the same block.

    Raises:
        ConfigError: it cannot listen at the host, or the token is too short.
    """
    started: Future[tuple[EndpointServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        try:
            server = _server(memory, settings)
            await server.start()
        except BaseException as error:  # noqa: BLE001 it is the caller's
            started.set_exception(error)
            return
        started.set_result((server, asyncio.get_running_loop(), stop))
        try:
            await stop.wait()
        finally:
            await server.close()

    def work() -> None:
        asyncio.run(run())

    thread = threading.Thread(target=work, name=f"endpoint-{settings.rank}", daemon=True)
    thread.start()
    try:
        server, loop, stop = started.result()
    except BaseException:
        thread.join()
        raise
    address = EndpointAddress(
        rank=settings.rank,
        address=server.address,
        token=settings.token,
        timeout_s=settings.timeout_s,
    )
    return Endpoint(address, server, loop, thread, stop)


def _server(memory: KVMemory, settings: EndpointSettings) -> EndpointServer:
    return EndpointServer(
        memory,
        ConnectorSettings(
            endpoint=f"tcp://{join_address(settings.host, 0)}",
            advertise_host=settings.advertise_host,
        ),
        rank=settings.rank,
        token=settings.token,
        timeout_s=settings.timeout_s,
    )
