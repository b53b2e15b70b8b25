"""Whether requests can be served, over all models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.router.catalogue.pool import Pool


class Readiness:
    """A router is ready if it can serve one of its models."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        """Look at these pools; there is at least one."""
        self._pools = pools

    @property
    def is_ready(self) -> bool:
        """Whether a request for some model would be served now, or held until it can be."""
        return any(pool.takes_requests for pool in self._pools)

    def not_ready_because(self) -> list[str]:
        """Return what is missing before any request can be served; empty if ready."""
        if self.is_ready:
            return []
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
        waits = [
            asyncio.create_task(pool.endpoints.wait_until(lambda: self.is_ready is ready))
            for pool in self._pools
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
