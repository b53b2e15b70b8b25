"""Send the state to all viewers once a second. It is built once for all of them.

Server-sent events instead of polling: one message serves every viewer, the server sets the pace, a
viewer that is gone is noticed, and a second without a message means that the router is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from services.router.dashboard.state import to_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.dashboard.state import DashboardState

PERIOD_S = 1.0
MAX_VIEWERS = 64


class Feed:
    """Sends ticks to all viewers. A viewer that was too slow for a tick gets the full state."""

    def __init__(
        self, state: DashboardState, *, period_s: float = PERIOD_S, max_viewers: int = MAX_VIEWERS
    ) -> None:
        self._state = state
        self._period_s = period_s
        self._max_viewers = max_viewers
        self._number = 0
        self._event = b""
        self._hello: tuple[int, bytes] = (-1, b"")
        self._next = asyncio.Event()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self.num_viewers = 0

    @property
    def is_full(self) -> bool:
        """Whether no further viewer may join: the limit is reached, or the feed has stopped."""
        return self._stopped or self.num_viewers >= self._max_viewers

    def start(self) -> None:
        """Start to build the state once a second."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End every viewer's stream at once, so that the streams do not delay the router's end."""
        self._stopped = True
        self._next.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the full state, then each tick, until the feed stops or the viewer leaves."""
        self.num_viewers += 1
        try:
            seen = None
            while not self._stopped:
                next_tick, number = self._next, self._number
                if seen == number - 1:
                    yield self._event
                elif seen != number:
                    yield self._whole()
                seen = number
                # The next tick may have come while this one was being sent.
                if number == self._number:
                    await next_tick.wait()
        finally:
            self.num_viewers -= 1

    def look(self) -> None:
        """Build and send the state of one period."""
        self._state.look()
        if not self.num_viewers:
            return
        self._number += 1
        self._event = _event(b"tick", to_json(self._state.tick()))
        self._next.set()
        self._next = asyncio.Event()

    def _whole(self) -> bytes:
        number, hello = self._hello
        if number != self._number or not self._number:
            hello = _event(b"hello", to_json(self._state.hello()))
            self._hello = self._number, hello
        return hello

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            # A fixed rhythm; missed periods are skipped after a delay of the loop, not sent in a
            # burst.
            due_s = max(due_s + self._period_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            self.look()


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, data)
