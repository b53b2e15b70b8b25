"""A receiver that believes every checksum that it is told."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from benchmarks.faults.broken.entry import run_service
from shared.connector.protocol.block_io import BlockIO
from shared.connector.protocol.inbound import Inbound

if TYPE_CHECKING:
    from shared.connector.protocol.frame import Frame

_told: ContextVar[int] = ContextVar("told")
_accept, _write = Inbound.accept, BlockIO.write


async def accept(self: Inbound, frame: Frame, sources: Any) -> None:
    """As it is, but the writer below knows what the sender claims."""
    _told.set(frame.digest)
    await _accept(self, frame, sources)


async def write(self: BlockIO, *arguments: Any) -> int | None:
    """As it is, but what was written has the checksum that was claimed."""
    found = await _write(self, *arguments)
    return None if found is None else _told.get()


if __name__ == "__main__":
    Inbound.accept = accept  # type: ignore[method-assign]  # broken on purpose
    BlockIO.write = write  # type: ignore[method-assign, assignment]  # broken on purpose
    run_service()
