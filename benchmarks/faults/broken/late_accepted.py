"""A receiver that still writes what comes for a transfer that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.faults.broken.entry import run_service
from shared.connector.protocol.block_io import Activity
from shared.connector.protocol.receiver import Receiver, Session

if TYPE_CHECKING:
    from shared.connector.protocol.frame import Frame
    from shared.connector.protocol.inbound import Inbound

_open, _take = Receiver.open, Receiver._take
_known: dict[bytes, Inbound] = {}


def open_(self: Receiver, **arguments: Any) -> Inbound:
    """As it is, but no ticket is ever forgotten."""
    inbound = _open(self, **arguments)
    _known[inbound.ticket.transfer_id] = inbound
    return inbound


async def take(self: Receiver, session: Session, frame: Frame, payload: Any) -> None:
    """As it is, but a piece that is late goes where it once belonged."""
    inbound = _known.get(frame.transfer_id)
    if inbound is None or not inbound.ended:
        await _take(self, session, frame, payload)
        return
    parts = payload(frame) if callable(payload) else payload
    blocks = inbound.blocks[frame.first_index : frame.first_index + frame.num_blocks]
    await inbound._io.write(blocks, parts, Activity())
    self._acknowledge(session, frame)


if __name__ == "__main__":
    Receiver.open = open_  # type: ignore[method-assign]  # broken on purpose
    Receiver._take = take  # type: ignore[method-assign]  # broken on purpose
    run_service()
