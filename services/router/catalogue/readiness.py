"""Whether requests can be served, over all models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from services.router.catalogue.pool import Pool


class Others(Protocol):
    """The other processes that listen on this router's ports. All on one event loop."""

    @property
    def are_ready(self) -> bool:
        """Whether each of them can serve, by what it said last."""
        ...

    def say(self, *, ready: bool) -> None:
        """Tell them whether requests can be served here."""
        ...

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this after every change of `are_ready`, instead of what was given before."""
        ...


class Readiness:
    """A router is ready if each of its processes can serve one of its models.

    A client that was told so may open its next connection to any process.
    """

    def __init__(self, pools: Sequence[Pool], others: Others | None = None) -> None:
        """Look at these pools; there is at least one. `others`: None if this process is alone."""
        self._pools = pools
        self._others = others
        if others is not None:
            others.on_change(self._wake)

    @property
    def is_ready(self) -> bool:
        """Whether a request for some model would be served now, or held until it can be."""
        return self._takes_requests and (self._others is None or self._others.are_ready)

    def not_ready_because(self) -> list[str]:
        """Return what is missing before any request can be served; empty if ready."""
        if self.is_ready:
            return []
        if self._takes_requests:
            return ["another process of this router does not know a worker yet"]
        return self._named((pool, pool.not_ready_because()) for pool in self._pools)

    def notes(self) -> list[str]:
        """Return what is missing though some requests can be served."""
        if not self.is_ready:
            return []
        return self._named((pool, pool.not_ready_because() or pool.notes()) for pool in self._pools)

    def _named(self, found: Iterable[tuple[Pool, Sequence[str]]]) -> list[str]:
        """Return all texts; with several models each after its model's name."""
        if len(self._pools) == 1:
            return [text for _, texts in found for text in texts]
        return [f"{pool.name}: {text}" for pool, texts in found for text in texts]

    async def become(self, *, ready: bool) -> None:
        """Return as soon as `is_ready` is this."""
        await self._until(lambda: self.is_ready is ready)

    async def tell_others(self) -> None:
        """Keep the other processes up to date until cancelled. Tells them the first time at once.

        There is at least one other.
        """
        assert self._others is not None
        while True:
            self._others.say(ready=self._takes_requests)
            await self._until(_changes(lambda: self._takes_requests))

    @property
    def _takes_requests(self) -> bool:
        return any(pool.takes_requests for pool in self._pools)

    def _wake(self) -> None:
        for pool in self._pools:
            pool.endpoints.wake()

    async def _until(self, condition: Callable[[], bool]) -> None:
        waits = [asyncio.create_task(pool.endpoints.wait_until(condition)) for pool in self._pools]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _changes(value: Callable[[], bool]) -> Callable[[], bool]:
    """Return a condition: the value is another one than now."""
    now = value()
    return lambda: value() is not now
