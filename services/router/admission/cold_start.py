"""Hold requests while there is no worker at all, for example after scaling to zero."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shared.errors import NoWorkerError, OverloadedError, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class ColdStart:
    """Requests wait here before anything about them is checked: workers say what they can do."""

    def __init__(
        self,
        become_ready: Callable[[], Awaitable[None]],
        is_ready: Callable[[], bool],
        *,
        longest_s: float,
        max_requests: int,
    ) -> None:
        """Hold at most `max_requests`, each `longest_s`; 0: none."""
        self._become_ready = become_ready
        self._is_ready = is_ready
        self.longest_s = longest_s
        self._max_requests = max_requests
        #: Requests that wait.
        self.num_waiting = 0

    @property
    def holds(self) -> bool:
        """Whether requests wait at all."""
        return self.longest_s > 0

    @property
    def is_over(self) -> bool:
        """Whether a request need not wait."""
        return not self.holds or self._is_ready()

    async def wait(self) -> None:
        """Return as soon as a request can be served; at once if it can be, or if none is held.

        Raises:
            NoWorkerError: no worker has come in time.
            OverloadedError: too many requests wait already.
        """
        if self.is_over:
            return
        if self.num_waiting >= self._max_requests:
            message = f"{self.num_waiting} requests wait for the first worker already"
            raise OverloadedError(
                message, retry_after_s=self.longest_s, reason=RefusalReason.QUEUE_FULL
            )
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self.longest_s):
                await self._become_ready()
        except TimeoutError as error:
            message = f"no worker has become ready within {self.longest_s:g} s (--worker-wait-s)"
            raise NoWorkerError(message) from error
        finally:
            self.num_waiting -= 1
