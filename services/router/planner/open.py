"""The planner that the router's settings ask for, of one model."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from services.router.planner.board import AloneBoard
from services.router.planner.loop import Plan, PlannerLoop
from services.router.planner.view import PoolView

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from services.router.admission.cold_start import ColdStart
    from services.router.admission.entrance import Entrance
    from services.router.config import RouterConfig
    from services.router.planner.board import Board
    from services.router.planning.base import Mover
    from services.router.routing.book import Book
    from services.router.workers.endpoints import EndpointPool

#: Exchanges that a leader may miss, and the shortest time after which it has lost the lead.
MISSED, LEAST_LEASE_S = 3, 5.0


class Boards:
    """Makes the boards of a router. Without Redis it is the only one of its directory.

    `close` must be called last.
    """

    def __init__(
        self,
        config: RouterConfig,
        router: str,
        *,
        alone: Callable[[str], Board] = lambda _: AloneBoard(),
    ) -> None:
        """Connect to nothing yet. `router`: this router's name, for people.

        `alone` returns the board of a model without Redis.
        """
        self._alone = alone
        self._config = config
        # A router that starts again under its old name is another one.
        self._name = f"{router}-{secrets.token_hex(4)}"
        self._client: Redis | None = None

    def of(self, model: str) -> Board:
        """Return the board of a model.

        Raises:
            ConfigError: the URL of Redis is not valid.
        """
        url = self._config.redis_url
        if url is None:
            return self._alone(model)
        # Redis's client takes a quarter of a second to load, and most clusters have none.
        from services.router.planner.redis.board import RedisBoard  # noqa: PLC0415
        from shared.directory.redis.url import open_client  # noqa: PLC0415

        if self._client is None:
            self._client = open_client(url, password_file=self._config.redis_password_file)
        lease_s = max(LEAST_LEASE_S, MISSED * self._config.planning.planner_interval_s)
        return RedisBoard(self._client, model=model, name=self._name, lease_s=lease_s)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            from shared.directory.redis.url import close_client  # noqa: PLC0415

            await close_client(self._client)


def open_planner(
    config: RouterConfig,
    endpoints: EndpointPool,
    admission: Entrance,
    cold_start: ColdStart,
    book: Book,
    boards: Boards,
    mover: Mover,
    *,
    router: str,
) -> PlannerLoop | None:
    """Return the planner of one model; None: it is off."""
    settings = config.planning
    if settings.planner == "off":
        return None
    model = config.model_names[0]
    bounds = settings.bounds(max_ttft_ms=config.max_ttft_ms, max_itl_ms=config.max_itl_ms)
    plan = Plan(
        model=model,
        acts=settings.planner == "act",
        bounds=bounds,
        limits=settings.limits,
        pace=settings.pace,
        interval_s=settings.planner_interval_s,
        router=router,
    )
    view = PoolView(endpoints, admission, cold_start, book, bounds)
    return PlannerLoop(plan, view, endpoints.everyone, boards.of(model), mover)
