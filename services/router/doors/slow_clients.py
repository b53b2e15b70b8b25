"""Disconnect HTTP clients that do not read their answers.

An answer waits while its client's connection is full. It delays no other answer, but it stays
admitted: clients that never read would use up all places.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

log = structlog.get_logger(__name__)

#: A client that reads no byte for this time counts as gone, even if its connection is open.
STALL_S = 30.0
#: Number of checks of the connections per stall.
_LOOKS = 6


class SlowClients:
    """Checks all connections at an interval, so that sending costs nothing more."""

    def __init__(
        self,
        connections: Callable[[], Collection[Any]],
        *,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `connections`: uvicorn's protocols, whose common type is not public."""
        self._connections = connections
        self._stall_s = stall_s
        self._clock = clock
        #: By full connection: number of waiting bytes, and since when it has not changed.
        self._waiting: dict[Any, tuple[int, float]] = {}

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._stall_s / _LOOKS)
            self.look()

    def look(self) -> None:
        """Disconnect clients that have read nothing for `stall_s`."""
        now_s = self._clock()
        before, self._waiting = self._waiting, {}
        for connection in tuple(self._connections()):
            if not getattr(connection, "flow", None) or not connection.flow.write_paused:
                continue
            # The sender waits meanwhile, so the number of waiting bytes can only fall.
            num_bytes = connection.transport.get_write_buffer_size()
            num_before, since_s = before.get(connection, (None, now_s))
            if num_bytes != num_before:
                since_s = now_s
            self._waiting[connection] = num_bytes, since_s
            if now_s - since_s >= self._stall_s:
                del self._waiting[connection]
                log.warning("client_takes_nothing", num_bytes=num_bytes, stall_s=self._stall_s)
                connection.transport.abort()
