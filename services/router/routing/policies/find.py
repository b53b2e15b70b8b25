"""Finds a policy by its name: ours, or one that an installed package brings."""

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

#: Packages name functions like those of this folder here.
ENTRY_POINT_GROUP = "baton.routing_policies"

OURS: dict[str, MakePolicy] = {
    "cost": cost.policy,
    "random": uniform.policy,
    "round-robin": round_robin.policy,
    "least-loaded": least_loaded.policy,
    "cache-first": cache_first.policy,
}


def find_policy(name: str, rng: random.Random) -> Policy:
    """The policy of this name; ours come first.

    Raises:
        ConfigError: there is none, or the package that brings it cannot be loaded.
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
