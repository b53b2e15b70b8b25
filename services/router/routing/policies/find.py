"""Find a policy by its name: a built-in one, or one of an installed package."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from services.router.routing.policies import (
    cache_first,
    cost,
    least_loaded,
    round_robin,
    uniform,
)
from shared.errors import ConfigError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from services.router.routing.base import Policy

    MakePolicy = Callable[[random.Random], Policy]

#: Entry points name functions like those in this folder.
ENTRY_POINT_GROUP = "baton.routing_policies"

OURS: dict[str, MakePolicy] = {
    "cost": cost.policy,
    "random": uniform.policy,
    "round-robin": round_robin.policy,
    "least-loaded": least_loaded.policy,
    "cache-first": cache_first.policy,
}


def find_policy(name: str, rng: random.Random) -> Policy:
    """Return the policy of this name; built-in ones have precedence.

    Raises:
        ConfigError: there is none, or its package cannot be loaded.
    """
    if name in OURS:
        return OURS[name](rng)
    brought = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in brought:
        known = ", ".join([*OURS, *sorted(brought)])
        raise ConfigError(f"there is no routing policy {name!r}; known: {known}")
    try:
        make: MakePolicy = brought[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the routing policy {name!r} cannot be loaded: {error}") from error
    return make(rng)
