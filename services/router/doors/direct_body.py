"""The body of a response, written to its connection without a task that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

if TYPE_CHECKING:
    from starlette.types import Send


class DirectBody:
    """See ResponseBody: of the server's object for one request."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, send: Send) -> DirectBody | None:
        """Return the body behind the server's `send`; None if `send` is of another server."""
        cycle = getattr(send, "__self__", None)
        return cls(cycle) if isinstance(cycle, RequestResponseCycle) else None

    def is_writable(self) -> bool:
        """See ResponseBody. A body of known length is written by the server alone."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or cycle.disconnected)

    def write(self, data: bytes) -> None:
        """See ResponseBody."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
