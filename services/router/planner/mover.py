"""Orders to workers to prefer another kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import worker_pb2
from services.router.fleet.orders import QUICK_S
from shared.errors import UnavailableError
from shared.rpc.wire import role_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.fleet.orders import WorkerOrders
    from services.router.planning.base import Move
    from services.router.workers.endpoint import Endpoint


class OrderMover:
    """See Mover."""

    def __init__(self, orders: WorkerOrders, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        """Move workers among these: all live ones."""
        self._orders = orders
        self._endpoints = endpoints

    async def prefer(self, move: Move) -> None:
        """See Mover."""
        found = [each for each in self._endpoints() if each.record.worker == move.worker]
        if not found:
            raise UnavailableError(f"{move.worker} has left")
        request = worker_pb2.PreferRequest(role=role_to_wire(move.to))
        await self._orders.one(found[0], lambda stub: stub.Prefer(request, timeout=QUICK_S))
