"""The place of a pool's model in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.catalogue.pool import Pool, Served
    from services.router.openai.backend import Backend


class PoolShelf:
    """See services.router.openai.catalogue.Shelf."""

    def __init__(self, pool: Pool, front: Callable[[Pool, Served], Backend]) -> None:
        """`front` returns what the endpoints use for the pool's model; it is called once a load."""
        self._pool = pool
        self._front = front

    @property
    def names(self) -> tuple[str, ...]:
        """See Shelf."""
        return self._pool.names

    def loaded(self) -> Backend | None:
        """See Shelf."""
        served = self._pool.served
        if served is None:
            return None
        if served.backend is None:
            served.backend = self._front(self._pool, served)
        return served.backend
