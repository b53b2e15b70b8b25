"""The served end of a control connection: one client, whose acts run as tasks."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog
import zmq
import zmq.asyncio

from shared.address import is_every_host, join_address, split_endpoint
from shared.connector.protocol.tasks import Tasks
from shared.connector.remote.acts import Acts
from shared.connector.remote.address import TIMEOUT_S, heartbeat_s
from shared.connector.remote.keys import TokenKeys
from shared.connector.remote.wire import (
    MAX_MESSAGE_BYTES,
    Answer,
    Call,
    Cancelled,
    Failed,
    FailureKind,
    News,
    changed,
    decode_asked,
    encode,
)
from shared.connector.zeromq.sockets import Sockets, close, send, watch
from shared.errors import ConfigError, TransferFailure

if TYPE_CHECKING:
    from shared.connector.registry import ConnectorSettings
    from shared.connector.remote.wire import Cancel, Result
    from shared.kv.memory import KVMemory

log = structlog.get_logger(__name__)

#: Acts that may go on at once.
MOST_CALLS = 1 << 17
#: Changes are told so often.
_NEWS_S = 0.25
#: See `FrameTransport`: libzmq reports the loss of a connection a moment before it forgets it.
_PROBE_DELAYS_S = (0.0, 0.05, 0.5)


class EndpointServer:
    """Serves the connectors of one `KVMemory`, which must exist longer, to one client.

    The first client that sends a message is the client; it stays so until the end, and others are
    refused. When its connection is lost, or it sends what is no message, every transfer is aborted
    in both directions, every connector is closed, and all that comes later is refused: the
    endpoint is of no more use. Only what holds the group's token can connect at all.

    Calls begin in the order in which they were sent. Each is a task, and is answered once, when it
    has ended; so is a cancelled one. All methods are called on one event loop.
    """

    def __init__(
        self,
        memory: KVMemory,
        settings: ConnectorSettings,
        *,
        rank: int,
        token: bytes,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """settings: those of the host, with the endpoint to listen at (tcp://host:port).

        timeout_s: a client that is silent for so long is lost.

        Raises:
            ConfigError: see `TokenKeys`; or peers could not know the host's address.
        """
        host, _ = split_endpoint(settings.endpoint)
        reached_host = settings.advertise_host if is_every_host(host) else host
        if reached_host is None:
            raise ConfigError(f"rank {rank} listens at {host}: it needs an advertised host, too")
        self.address = ""
        self._rank = rank
        self._endpoint = f"tcp://{host}:0"
        #: Rank 0 is no peer: it reaches this host as the group's other connections do.
        self._reached_host = reached_host
        self._timeout_s = timeout_s
        self._security = TokenKeys(token, "server")
        self._acts = Acts(memory, settings)
        self._tasks = Tasks()
        self._calls: dict[int, asyncio.Task[Result]] = {}
        self._client = b""
        self._said_s = 0.0
        #: Why the client is served no more.
        self._refused = ""
        self._ending: asyncio.Task[None] | None = None
        self._told_refusals: dict[int, dict[TransferFailure, int]] = {}
        self._told_received: dict[int, int] = {}
        self._sockets: Sockets | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None

    async def start(self) -> None:
        """Listen; then `address` is known.

        Raises:
            ConfigError: it cannot listen there.
        """
        self._sockets = Sockets(heartbeat_s=heartbeat_s(self._timeout_s), security=self._security)
        self._security.start(self._sockets.context)
        try:
            self._router = self._sockets.router(self._endpoint, MAX_MESSAGE_BYTES)
        except zmq.ZMQError as error:
            await self._release()
            raise ConfigError(
                f"rank {self._rank} cannot listen at {self._endpoint}: {error}"
            ) from error
        _, port = split_endpoint(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.address = f"tcp://{join_address(self._reached_host, port)}"
        self._monitor = self._sockets.monitor(self._router)
        self._tasks.spawn(self._serve(self._router), on_exit=self._end)
        self._tasks.spawn(watch(self._monitor, self._probe), on_exit=lambda _: None)
        self._tasks.spawn(self._tell(), on_exit=lambda _: None)

    async def close(self) -> None:
        """Abort every transfer, then release all. After it no block is accessed. Idempotent."""
        self._end("this endpoint has closed")
        assert self._ending is not None  # just now at the latest
        await asyncio.shield(self._ending)
        await self._tasks.close()
        await self._release()

    async def _release(self) -> None:
        if self._router is not None and self._monitor is not None:
            close(self._router, self._monitor)
        await self._security.stop()
        if self._sockets is not None:
            # Some milliseconds, once.
            self._sockets.context.destroy(linger=0)
            self._sockets = None

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            peer, *parts = await router.recv_multipart()
            try:
                message = decode_asked(parts[0] if len(parts) == 1 else b"")
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                if peer == self._client:
                    self._end(f"its client sent no message: {error}")
                continue
            self._client = self._client or peer
            if peer == self._client:
                self._take(message)
            elif isinstance(message, Call):
                refusal = Failed(FailureKind.CONFIG, self._refused or "another client is served")
                self._send(peer, Answer(message.number, refusal))

    def _take(self, message: Call | Cancel) -> None:
        number = message.number
        call = self._calls.get(number)
        if not isinstance(message, Call):
            if call is not None:
                call.cancel()
        elif self._refused or call is not None or len(self._calls) >= MOST_CALLS:
            why = self._refused or f"{len(self._calls)} acts go on, and {number} may be one of them"
            refusal = Failed(FailureKind.TRANSFER, why, TransferFailure.PEER_LOST)
            self._send(self._client, Answer(number, refusal))
        else:
            task = asyncio.get_running_loop().create_task(self._acts.do(message.act))
            self._calls[number] = task
            task.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, task: asyncio.Task[Result]) -> None:
        del self._calls[number]
        # What the client has heard when it reads an answer is not older than that.
        self._send_news(always=False)
        result = Cancelled() if task.cancelled() else task.result()
        self._send(self._client, Answer(number, result))

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(min(_NEWS_S, self._timeout_s / 6))
            is_silent = time.monotonic() - self._said_s > self._timeout_s / 6
            self._send_news(always=is_silent)

    def _send_news(self, *, always: bool) -> None:
        refusals = {key: dict(value) for key, value in self._acts.refusals.items()}
        news = News(
            changed(refusals, self._told_refusals),
            changed(self._acts.received, self._told_received),
        )
        if self._client and (always or news.refusals or news.received):
            self._send(self._client, news)

    def _send(self, peer: bytes, message: Answer | News) -> None:
        if self._router is None or self._router.closed:
            return
        self._said_s = time.monotonic()
        if send(self._router, [peer, encode(message)]) is not None and peer == self._client:
            self._end("its client is gone, or does not read")

    def _probe(self, event: str) -> None:
        loop = asyncio.get_running_loop()
        for delay_s in _PROBE_DELAYS_S:
            loop.call_later(delay_s, partial(self._send_news, always=True))

    def _end(self, why: str) -> None:
        """Refuse all that comes, and abort what there is."""
        if not self._refused:
            self._refused = f"the endpoint of rank {self._rank} is of no more use: {why}"
            log.info("endpoint_ended", rank=self._rank, why=why)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._abort_all())

    async def _abort_all(self) -> None:
        calls = tuple(self._calls.values())
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        await self._acts.close()
