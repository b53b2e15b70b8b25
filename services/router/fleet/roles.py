"""Orders to workers about the roles for which they are preferred."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from baton.v1 import worker_pb2
from services.router.fleet.orders import QUICK_S
from shared.errors import InvalidRequestError, UnavailableError, UnsupportedError
from shared.rpc.wire import role_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.fleet.orders import WorkerOrders
    from services.router.workers.endpoint import Endpoint
    from services.router.workers.endpoints import EndpointPool
    from shared.identity import Role

log = structlog.get_logger(__name__)

#: Time until the worker's next heartbeat has reached this router; the worker sends it at once.
HEARD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferred:
    """A worker's preference after an order."""

    worker: str
    role: Role
    #: The first step of its engine that is scheduled for the role; 0: it does not count.
    from_step: int = 0
    #: What it lacks in this role because it started with another one, in words.
    limits: tuple[str, ...] = ()


class FleetRoles:
    """Changes workers' preferences. Requests go on; no block moves."""

    def __init__(self, endpoints: EndpointPool, orders: WorkerOrders) -> None:
        self._endpoints = endpoints
        self._orders = orders

    def find(self, name: str) -> Endpoint | None:
        """Return the live worker of a name."""
        return next((each for each in self._endpoints.everyone() if each.name == name), None)

    async def prefer(self, name: str, role: Role) -> Preferred:
        """Have a worker prefer a role; return when this router knows. Safe to repeat.

        Other routers know as soon: the worker tells all its directories at the same time.

        Raises:
            InvalidRequestError: there is no such worker.
            UnsupportedError: it does not serve the role.
            UnavailableError: it drains, sleeps or cannot be reached; its preference is unchanged.
        """
        endpoint = self.find(name)
        if endpoint is None:
            raise no_worker(name, self._endpoints.everyone())
        if not endpoint.serves(role):
            served = ", ".join(sorted(endpoint.record.served))
            raise UnsupportedError(f"{name} serves {served} alone", param="role")
        if endpoint.record.sleeps:
            raise UnavailableError(f"{name} sleeps: wake it up first")
        if not endpoint.record.serves:
            # It is older than the order, and has one role.
            return Preferred(worker=name, role=role)
        request = worker_pb2.PreferRequest(role=role_to_wire(role))
        answer = await self._orders.one(
            endpoint, lambda stub: stub.Prefer(request, timeout=QUICK_S)
        )
        log.info("worker_told_to_prefer", worker=name, role=role.value, from_step=answer.from_step)
        await self._heard(endpoint, role)
        return Preferred(
            worker=name, role=role, from_step=answer.from_step, limits=tuple(answer.limits)
        )

    async def _heard(self, endpoint: Endpoint, role: Role) -> None:
        """Wait until the worker's heartbeat says so, or it has left.

        Raises:
            UnavailableError: none came in time; the worker itself knows.
        """
        try:
            async with asyncio.timeout(HEARD_S):
                await self._endpoints.wait_until(
                    lambda: endpoint.preference is role or self.find(endpoint.name) is not endpoint
                )
        except TimeoutError as error:
            raise UnavailableError(
                f"{endpoint.name} prefers {role.value}, and its directory does not say so yet"
            ) from error


def no_worker(name: str, workers: Iterable[Endpoint]) -> InvalidRequestError:
    """Return the error of an order to a worker that is not there; it names those that are."""
    names = ", ".join(sorted(each.name for each in workers)) or "none"
    return InvalidRequestError(f"there is no worker {name[:200]!r}; alive: {names}", param="worker")
