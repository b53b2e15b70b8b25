"""The cluster as its operators see it, over HTTP."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.router.catalogue.fleets import AllFleets
from shared.errors import ModelNotFoundError
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.router.catalogue.pool import Pool
    from services.router.config import RouterConfig
    from services.router.fleet.fleet import Fleet
    from services.router.parts import RouterParts
    from services.router.processes.process import RouterProcess

#: What processes of a router ask each other.
NUM_REQUESTS = "num_requests"

#: Settings whose values are secrets, or may contain one.
_SECRET = frozenset({"client_keys", "hf_token", "redis_url"})


class OperatedCluster:
    """See `services.router.openai.operators.endpoints.Cluster`."""

    def __init__(
        self, config: RouterConfig, parts: RouterParts, process: RouterProcess | None = None
    ) -> None:
        """`process`: this one, if the router has several."""
        self._config = config
        self._parts = parts
        self._process = process
        if process is not None:
            process.on_ask(NUM_REQUESTS, self._own_requests)

    def fleet_of(self, model: str | None) -> Fleet | AllFleets:
        """See Cluster."""
        pools = self._pools(model)
        return pools[0].parts.fleet if len(pools) == 1 else AllFleets(pools)

    async def num_requests(self, model: str | None = None) -> int:
        """See Cluster."""
        number = await self._own_requests(model)
        if self._process is not None:
            number += sum(await self._process.ask_others(NUM_REQUESTS, model))
        return number

    async def _own_requests(self, model: str | None) -> int:
        return sum(pool.admission.num_inside for pool in self._pools(model))

    def describe(self) -> Mapping[str, Any]:
        """See Cluster."""
        pools = self._parts.pools
        return {
            "version": VERSION,
            "models": self._parts.model_names,
            "pools": [
                {
                    "model": pool.name,
                    "names": pool.names,
                    "loaded": pool.served is not None,
                    "planner": None if (loop := pool.parts.planner) is None else loop.describe(),
                }
                for pool in pools
            ],
            "config": settings_without_secrets(self._config),
            "workers": [each for pool in pools for each in pool.parts.control.describe()],
        }

    async def reset_prefix_cache(self, model: str | None = None) -> bool:
        """See Cluster."""
        done = [await pool.parts.control.reset_prefix_cache() for pool in self._pools(model)]
        return all(done)

    def _pools(self, model: str | None) -> tuple[Pool, ...]:
        """Return the pool of a model, or all.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        pools = self._parts.pools
        if model is None:
            return pools
        found = tuple(pool for pool in pools if model in pool.names)
        if not found:
            names = ", ".join(self._parts.model_names)
            raise ModelNotFoundError(f"the model {model[:200]!r} does not exist; served: {names}")
        return found


def settings_without_secrets(settings: Any) -> dict[str, Any]:
    """Return the fields of a settings record for JSON, those of its groups beside its own."""
    shown: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            shown |= settings_without_secrets(value)
        elif field.name in _SECRET and value:
            shown[field.name] = "hidden"
        else:
            shown[field.name] = str(value) if isinstance(value, Path) else value
    return shown
