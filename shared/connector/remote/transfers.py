"""Both sides' transfers of a remote connector. Each remembers its end, which the server forgets."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shared.connector.remote.line import is_over
from shared.connector.remote.wire import (
    Abort,
    Arrived,
    Failed,
    FailureKind,
    Finish,
    Push,
    Sent,
    Wait,
)
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.connector.base import Receipt, Ticket
    from shared.connector.remote.line import Line
    from shared.connector.remote.wire import Result


class RemoteInbound:
    """An `InboundTransfer` into blocks of another process."""

    def __init__(
        self,
        line: Line,
        number: int,
        ticket: Ticket,
        *,
        end_s: float,
        on_end: Callable[[RemoteInbound], None],
    ) -> None:
        """end_s: what the server may take for an end, beyond the time-out of `wait`."""
        self._on_end = on_end
        self._line = line
        self._number = number
        self._ticket = ticket
        self._end_s = end_s
        self._end: Arrived | Failed | None = None
        self._num_received = 0

    @property
    def ticket(self) -> Ticket:
        """See `InboundTransfer.ticket`."""
        return self._ticket

    @property
    def num_blocks_received(self) -> int:
        """See `InboundTransfer.num_blocks_received`: as the server told last."""
        return self._num_received or self._line.num_received(self._number)

    async def wait(self, timeout_s: float) -> Receipt:
        """See `InboundTransfer.wait`."""
        if self._end is None:
            act = Wait(self._number, timeout_s)
            await self._line.call(act, timeout_s + self._end_s, self._note)
        if isinstance(self._end, Arrived):
            return self._end.receipt
        raise _error(self._end)

    async def abort(self) -> None:
        """See `InboundTransfer.abort`."""
        if self._end is None:
            with suppress(TransferError):  # its own end, or that of the connection
                await self._line.call(Abort(self._number), self._end_s, self._note)

    def _note(self, result: Result) -> None:
        if self._end is not None or not is_over(result):
            return
        self._num_received = self._line.num_received(self._number)
        self._line.forget(self._number)
        if isinstance(result, Arrived):
            self._num_received = result.receipt.num_blocks
        if isinstance(result, Arrived | Failed):
            self._end = result
            self._on_end(self)


class RemoteOutbound:
    """An `OutboundTransfer` out of blocks of another process."""

    def __init__(
        self,
        line: Line,
        number: int,
        ticket: Ticket,
        *,
        end_s: float,
        on_end: Callable[[RemoteOutbound], None],
    ) -> None:
        """end_s: see `RemoteInbound`."""
        self._on_end = on_end
        self._line = line
        self._number = number
        self._ticket = ticket
        self._end_s = end_s
        self._sent = Sent(0, 0, 0)
        #: Of a push, which does not end the transfer.
        self._failure: Failed | None = None
        self._end: Sent | Failed | None = None

    @property
    def num_pieces(self) -> int:
        """See `OutboundTransfer.num_pieces`: after the last act."""
        return self._sent.num_pieces

    @property
    def num_copied_bytes(self) -> int:
        """See `OutboundTransfer.num_copied_bytes`: after the last act."""
        return self._sent.num_copied_bytes

    @property
    def num_wire_bytes(self) -> int:
        """See `OutboundTransfer.num_wire_bytes`: after the last act."""
        return self._sent.num_wire_bytes

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        """See `OutboundTransfer.push`."""
        if self._end is not None:
            raise _error(self._end)
        act = Push(self._number, first_index, tuple(map(int, blocks)))
        # The server gives up a receiver that takes nothing.
        await self._line.call(act, None, self._note_push)

    async def finish(self, timeout_s: float) -> int:
        """See `OutboundTransfer.finish`."""
        if self._end is None:
            act = Finish(self._number, timeout_s)
            await self._line.call(act, timeout_s + self._end_s, self._note_end)
        if isinstance(self._end, Sent) and self._end.digest is not None:
            return self._end.digest
        raise _error(self._end)

    async def abort(self) -> None:
        """See `OutboundTransfer.abort`."""
        if self._end is None:
            with suppress(TransferError):  # that of the connection
                await self._line.call(Abort(self._number), self._end_s, self._note_end)

    def _note_push(self, result: Result) -> None:
        self._note_sent(result)
        if isinstance(result, Failed) and result.kind is FailureKind.TRANSFER:
            self._failure = self._failure or result

    def _note_end(self, result: Result) -> None:
        self._note_sent(result)
        if self._end is not None or not is_over(result):
            return
        if isinstance(result, Failed) or (isinstance(result, Sent) and result.digest is not None):
            self._end = result
        else:
            request = f"request {self._ticket.request_id} to {self._ticket.receiver}"
            message = f"{request}: the sender gave it up"
            self._end = self._failure or Failed(FailureKind.TRANSFER, message)
        self._on_end(self)

    def _note_sent(self, result: Result) -> None:
        sent = result.sent if isinstance(result, Failed) else result
        if isinstance(sent, Sent):
            self._sent = sent


def _error(end: Sent | Arrived | Failed | None) -> TransferError:
    """Return the error of an act on a transfer with this end."""
    if isinstance(end, Failed):
        return TransferError(end.reason, end.message)
    return TransferError(TransferFailure.LATE, "the transfer is over")
