"""The client's end of a control connection: calls, their answers, and its loss."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import msgspec
import structlog
import zmq
import zmq.asyncio

from shared.connector.protocol.tasks import Tasks
from shared.connector.remote.keys import TokenKeys
from shared.connector.remote.wire import (
    MAX_MESSAGE_BYTES,
    Abort,
    Answer,
    Call,
    Cancel,
    Cancelled,
    Failed,
    FailureKind,
    Stop,
    decode_told,
    encode,
)
from shared.connector.zeromq.sockets import Sockets, close, send, watch
from shared.errors import RankError, TransferError, TransferFailure
from shared.rpc.cancellation import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.connector.remote.address import EndpointAddress
    from shared.connector.remote.wire import Act, News, Result

log = structlog.get_logger(__name__)

#: A server that says nothing for so long is lost: its loop stands, though its process answers
#: heartbeats. It is also what an act may take beyond the time-out that it has itself.
SILENCE_S = 30.0


class Line:
    """A control connection to one endpoint, for all of its connectors.

    A connection that is lost stays lost: each call that waits, and each later one, raises a
    TransferError that names the rank, and `on_lost` is called, once. The server aborts every
    transfer when it notices, which may be later. So what is left must not compute with the rank's
    blocks any more: `on_lost` must end the group.

    All methods are called on the event loop that called `open`.
    """

    def __init__(
        self,
        address: EndpointAddress,
        *,
        on_lost: Callable[[RankError], None],
        heartbeat_s: float = 2.0,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Make the connection; nothing is sent before `open`.

        Raises:
            ConfigError: see `TokenKeys`.
        """
        self.address = address
        self._on_lost = on_lost
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._security = TokenKeys(address.token, "client")
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._tasks = Tasks()
        self._heard_s = 0.0
        self._lost: TransferError | None = None
        self._sockets: Sockets | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None
        #: See `News`.
        self.refusals: dict[int, Mapping[TransferFailure, int]] = {}
        self._received: dict[int, int] = {}

    def new_number(self) -> int:
        """Return a number that no connector, transfer or call of this line has."""
        return next(self._numbers)

    async def open(self) -> None:
        """Connect. That the endpoint is there, the first call finds out. Idempotent."""
        if self._sockets is not None or self._lost is not None:
            return
        self._sockets = Sockets(heartbeat_s=self._heartbeat_s, security=self._security)
        try:
            self._socket, self._monitor = self._sockets.dealer(
                self.address.address, MAX_MESSAGE_BYTES
            )
        except zmq.ZMQError as error:
            self._lose(f"cannot be connected to: {error}")
            return
        self._heard_s = time.monotonic()
        self._tasks.spawn(self._read(self._socket), on_exit=self._lose)
        self._tasks.spawn(watch(self._monitor, self._lose), on_exit=lambda _: None)
        self._tasks.spawn(self._listen_for_silence(), on_exit=lambda _: None)

    async def close(self) -> None:
        """End the connection; close the connectors before. Idempotent."""
        if self._lost is None:
            self._fail("was let go by rank 0")
        await self._tasks.close()
        if self._socket is not None and self._monitor is not None:
            close(self._socket, self._monitor)
        if self._sockets is not None:
            # Some milliseconds, once.
            self._sockets.context.destroy(linger=0)
            self._sockets = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._lost is not None

    def num_received(self, transfer: int) -> int:
        """Return the number of blocks of an inbound transfer that the server told of last."""
        return self._received.get(transfer, 0)

    def forget(self, transfer: int) -> None:
        """Keep nothing of a transfer that is over."""
        self._received.pop(transfer, None)

    async def call(
        self, act: Act, limit_s: float | None, on_answer: Callable[[Result], None] | None = None
    ) -> Result:
        """Have the server do an act; return its result when it has ended.

        If the caller is cancelled, the act is cancelled at the server, unless it is an end itself.
        This returns, with CancelledError, only when the server has said that the act has ended, or
        is lost. What it had done by then, `on_answer` is told, as of every answer.

        limit_s: of a server that works; None if the act ends by itself, in steps. A server that
        has not answered by then is lost.

        Raises:
            TransferError: PEER_LOST, the connection is lost, or the act's own.
            ConfigError, ValueError, InternalError: the act's own.
        """
        number = self.new_number()
        future = self._post(number, act)
        if on_answer is not None:
            future.add_done_callback(lambda done: _tell(on_answer, done))
        try:
            async with asyncio.timeout(limit_s):
                result = await asyncio.shield(future)
        except TimeoutError:
            self._lose(f"did not answer {type(act).__name__} within {limit_s:g} s")
            raise self._error() from None
        except asyncio.CancelledError:
            # An end goes on: until it has come, blocks are in use.
            if not isinstance(act, Abort | Stop):
                self._send(Cancel(number))
            await run_to_end(self._settled(future, act))
            raise
        if isinstance(result, Failed):
            raise result.error(str(self.address))
        if isinstance(result, Cancelled):
            raise TransferError(TransferFailure.PEER_LOST, f"{self.address} ended the act")
        return result

    def tell(self, act: Act) -> None:
        """Have the server do an act after all earlier ones, and do not wait for it."""
        self._post(self.new_number(), act)

    async def _settled(self, future: asyncio.Future[Result], act: Act) -> None:
        done, _ = await asyncio.wait([future], timeout=self._silence_s)
        if not done:
            self._lose(f"did not end {type(act).__name__} within {self._silence_s:g} s")

    def _post(self, number: int, act: Act) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        # Its error may find no caller any more.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._socket is None and self._lost is None:
            self._lose("was not connected to")
        if self._lost is None:
            self._waiting[number] = future
            self._send(Call(number, act))
        if self._lost is not None and not future.done():
            future.set_exception(self._error())
        return future

    def _send(self, message: Call | Cancel) -> None:
        if self._socket is None or self._lost is not None:
            return
        error = send(self._socket, [encode(message)])
        if error is not None:
            self._lose(f"takes nothing: {error}")

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            parts = await socket.recv_multipart()
            try:
                message = decode_told(parts[0] if len(parts) == 1 else b"")
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                self._lose(f"sent no message: {error}")
                return
            self._heard_s = time.monotonic()
            if isinstance(message, Answer):
                future = self._waiting.pop(message.number, None)
                if future is not None and not future.done():
                    future.set_result(message.result)
            else:
                self._hear(message)

    def _hear(self, news: News) -> None:
        self.refusals.update(news.refusals)
        self._received.update(news.received)

    async def _listen_for_silence(self) -> None:
        before_s = -1.0
        while True:
            await asyncio.sleep(min(self._heartbeat_s, self._silence_s / 2))
            # Twice the same: this process itself may have been stopped meanwhile.
            is_late = time.monotonic() - self._heard_s > self._silence_s
            if is_late and before_s == self._heard_s and self._waiting:
                self._lose(f"said nothing for {self._silence_s:g} s")
            before_s = self._heard_s

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._fail(f"is lost: its control connection {_ENDS.get(why, why)}")
        log.error("endpoint_lost", rank=self.address.rank, why=why)
        self._on_lost(RankError(self._error().detail, rank=self.address.rank))

    def _fail(self, what: str) -> None:
        self._lost = TransferError(TransferFailure.PEER_LOST, f"{self.address} {what}")
        if self._socket is not None and self._monitor is not None:
            # What the server may still hear must not be half of it.
            close(self._socket, self._monitor)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._error())

    def _error(self) -> TransferError:
        assert self._lost is not None
        return TransferError(self._lost.reason, self._lost.detail)


#: Events of ZeroMQ that say less than they mean.
_ENDS = {"HANDSHAKE_FAILED_AUTH": "was refused: another token"}


def _tell(on_answer: Callable[[Result], None], done: asyncio.Future[Result]) -> None:
    if not done.cancelled() and done.exception() is None:
        on_answer(done.result())


def is_over(result: Result) -> bool:
    """Return whether the answer to `Wait`, `Finish` or `Abort` says that the transfer is over."""
    if isinstance(result, Failed):
        return result.kind is FailureKind.TRANSFER
    return not isinstance(result, Cancelled)
