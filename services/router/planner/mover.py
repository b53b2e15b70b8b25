"""Moves as orders of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.fleet.fleet import Fleet
    from services.router.planning.base import Move
    from services.router.workers.endpoint import Endpoint


class FleetMover:
    """See Mover. A move waits for a change of the fleet that is going on, as every order does."""

    def __init__(self, fleet: Fleet, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """Move workers among these: all live ones."""
        self._fleet = fleet
        self._endpoints = endpoints

    async def prefer(self, move: Move) -> None:
        """See Mover."""
        if all(each.record.worker != move.worker for each in self._endpoints()):
            raise UnavailableError(f"{move.worker} has left")
        await self._fleet.prefer(move.worker.name, move.to)
