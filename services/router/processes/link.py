"""Messages between two processes of one router, over a pair of connected sockets.

A frame is its length in four bytes, and a list in MessagePack: what it is, a number, a name, and a
body. Both ends may ask; answers come in any order. The end of the other process ends the link,
whatever it was doing: the kernel closes its socket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from shared import errors
from shared.errors import (
    BatonError,
    IncompatiblePeerError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    RefusalReason,
    UnavailableError,
)

if TYPE_CHECKING:
    import socket

_TOLD, _ASKED, _ANSWERED, _FAILED = range(4)
_LENGTH_BYTES = 4
_NO_NUMBER = 0


class Service(Protocol):
    """What is told and asked at one end of a link. All on one event loop."""

    def told(self, link: Link, name: str, body: Any) -> None:
        """Take a message. Must not raise and cannot wait."""
        ...

    def asked(self, link: Link, name: str, body: Any) -> asyncio.Future[Any]:
        """Return the answer to come. Its error, a BatonError, is the asker's.

        The answer consists of what MessagePack has: numbers, texts, bytes, lists, maps.
        """
        ...

    def lost(self, link: Link) -> None:
        """Take notice that the link has ended. Called once, last."""
        ...


class LinkLostError(UnavailableError):
    """The other process has ended."""


class Link(asyncio.Protocol):
    """One end. Messages arrive in the order in which they were sent."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode
        self._data = bytearray()
        self._last_number = _NO_NUMBER
        self._open: dict[int, asyncio.Future[Any]] = {}
        #: Keeps what is being answered alive.
        self._answering: set[asyncio.Future[Any]] = set()
        self.is_lost = False

    async def open(self, end: socket.socket) -> None:
        """Use this socket, which the link owns from now on."""
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def tell(self, name: str, body: Any = None) -> None:
        """Send a message; it is dropped if the link is lost."""
        self._send(_TOLD, _NO_NUMBER, name, body)

    async def ask(self, name: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """Return the answer of the other process.

        Raises:
            BatonError: the other process's.
            LinkLostError: it has ended.
            TimeoutError: there was no answer in time.
        """
        if self.is_lost:
            raise _lost()
        self._last_number += 1
        number = self._last_number
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._send(_ASKED, number, name, body)
        try:
            if timeout_s is None:
                return await answer
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._open.pop(number, None)

    def close(self) -> None:
        """End the link. Safe to repeat."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._data += data
        start = 0
        while len(self._data) - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + int.from_bytes(self._data[start:body], "little")
            if end > len(self._data):
                break
            frame = self._decode(self._data[body:end])
            start = end
            self._take(*frame)
        del self._data[:start]

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.is_lost = True
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(_lost())
        for answer in list(self._answering):
            answer.cancel()
        self._service.lost(self)

    def _take(self, what: int, number: int, name: str, body: Any) -> None:
        if what == _TOLD:
            self._service.told(self, name, body)
            return
        if what == _ASKED:
            answer = self._service.asked(self, name, body)
            self._answering.add(answer)
            answer.add_done_callback(lambda done: self._answer(number, done))
            return
        waiting = self._open.get(number)
        if waiting is None or waiting.done():
            return
        if what == _ANSWERED:
            waiting.set_result(body)
        else:
            waiting.set_exception(error_from_wire(body))

    def _answer(self, number: int, answer: asyncio.Future[Any]) -> None:
        self._answering.discard(answer)
        if answer.cancelled():
            body = error_to_wire(UnavailableError("the request was given up"))
            self._send(_FAILED, number, "", body)
            return
        error = answer.exception()
        if error is None:
            self._send(_ANSWERED, number, "", answer.result())
        else:
            self._send(_FAILED, number, "", error_to_wire(error))

    def _send(self, what: int, number: int, name: str, body: Any) -> None:
        if self._transport is None or self.is_lost:
            return
        frame = self._encode((what, number, name, body))
        self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)


def answered(value: Any = None) -> asyncio.Future[Any]:
    """Return an answer that is there."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(value)
    return answer


def error_to_wire(error: BaseException) -> list[Any]:
    """Return an error for a message."""
    if not isinstance(error, BatonError):
        error = InternalError(f"{type(error).__name__}: {error}")
    retry_s = getattr(error, "retry_after_s", None)
    reason = getattr(error, "reason", None)
    is_plain = isinstance(reason, RefusalReason)
    return [
        type(error).__name__,
        str(error),
        getattr(error, "param", None),
        retry_s,
        str(reason) if is_plain else None,
    ]


def error_from_wire(body: Any) -> BatonError:
    """Return the error of a message."""
    name, message, param, retry_s, reason = body
    kind: type[BatonError] = getattr(errors, name, InternalError)
    if kind is OverloadedError:
        return OverloadedError(message, retry_after_s=retry_s, reason=RefusalReason(reason))
    if issubclass(kind, InvalidRequestError | PayloadTooLargeError):
        return kind(message, param=param)
    if kind is IncompatiblePeerError:
        return IncompatiblePeerError.relayed("", message)
    return kind(message)


def _lost() -> LinkLostError:
    return LinkLostError("another process of this router has ended; try again")
