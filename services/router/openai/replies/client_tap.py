"""The end of an outlet: a streamed response that has begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from services.router.request.outlet import Outlet

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.request.generation import AnswerPiece


class ResponseBody(Protocol):
    """The body of a response whose head has been sent. The HTTP server has the implementation."""

    def is_writable(self) -> bool:
        """Return whether the client takes more now."""
        ...

    def write(self, data: bytes) -> None:
        """Send a part of the body, without waiting. `data` is not empty."""
        ...


class ClientTap:
    """Closed until a stream opens it, and after its end. While it is closed all pieces are read."""

    __slots__ = ("_body", "_send")

    def __init__(self) -> None:
        self._body: ResponseBody | None = None
        self._send: Callable[[ResponseBody, AnswerPiece], None] | None = None

    def outlet(self) -> Outlet:
        """Return the outlet that ends here. It is for one request with one answer."""
        return Outlet((self._give,), is_open=self._is_open)

    def open(self, body: ResponseBody, send: Callable[[ResponseBody, AnswerPiece], None]) -> None:
        """Pass pieces to `send` as long as `body` is writable. `send` does not raise."""
        self._body, self._send = body, send

    def close(self) -> None:
        """Take no more pieces. Safe to repeat."""
        self._body = self._send = None

    def _is_open(self) -> bool:
        return self._body is not None and self._body.is_writable()

    def _give(self, piece: AnswerPiece) -> None:
        if self._body is not None and self._send is not None:
            self._send(self._body, piece)
