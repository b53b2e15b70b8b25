"""The cluster as its operators see it, over HTTP."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.router.config import RouterConfig
    from services.router.fleet.fleet import Fleet
    from services.router.parts import RouterParts

#: Settings whose values are secrets, or may contain one.
_SECRET = frozenset({"client_keys", "hf_token", "redis_url"})


class OperatedCluster:
    """See `services.router.openai.operators.Cluster`."""

    def __init__(self, config: RouterConfig, parts: RouterParts) -> None:
        self._config = config
        self._parts = parts

    @property
    def fleet(self) -> Fleet:
        """See Cluster."""
        return self._parts.pools[0].parts.fleet

    def num_requests(self) -> int:
        """See Cluster."""
        return sum(pool.admission.num_inside for pool in self._parts.pools)

    def describe(self) -> Mapping[str, Any]:
        """See Cluster."""
        pools = self._parts.pools
        return {
            "version": VERSION,
            "models": [name for pool in pools for name in pool.names],
            "config": settings_without_secrets(self._config),
            "workers": [each for pool in pools for each in pool.parts.control.describe()],
        }

    async def reset_prefix_cache(self) -> bool:
        """See Cluster."""
        done = [await pool.parts.control.reset_prefix_cache() for pool in self._parts.pools]
        return all(done)


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
