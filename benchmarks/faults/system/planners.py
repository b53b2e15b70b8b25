"""What Redis knows of the routers' planners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.faults.system.cluster import ROUTERS
from benchmarks.faults.system.model import MODEL_NAME
from services.router.planner.redis.board import PREFIX

if TYPE_CHECKING:
    from benchmarks.faults.system.cluster import Cluster

_KEYS = f"{PREFIX}{MODEL_NAME}:"


@dataclass(frozen=True, slots=True)
class Lead:
    """Who plans for all."""

    term: int
    #: A name of the cluster; the planner's own if it is of no process that runs.
    router: str


async def lead(cluster: Cluster) -> Lead | None:
    """Return who leads; None: no router does."""
    async with cluster.redis() as client:
        found = await client.get(f"{_KEYS}leader")
    if not found:
        return None
    term, _, planner = str(found).partition(" ")
    return Lead(int(term), _router_of(cluster, planner))


async def moved_ms(cluster: Cluster) -> int:
    """Return when the last move was claimed, by Redis's clock; 0: none was."""
    async with cluster.redis() as client:
        return int(await client.get(f"{_KEYS}moved") or 0)


async def reporters(cluster: Cluster) -> list[str]:
    """Return the routers whose reports count."""
    async with cluster.redis() as client:
        return sorted(_router_of(cluster, str(name)) for name in await client.zrange(
            f"{_KEYS}routers", 0, -1
        ))  # fmt: skip


async def forget(cluster: Cluster) -> None:
    """Delete all that planners have stored."""
    found = {key for key in await cluster.redis_keys() if key.startswith(PREFIX)}
    if found:
        await cluster.forget_keys(found)


def _router_of(cluster: Cluster, planner: str) -> str:
    """Return the process of a planner, whose name has the process's id: host-pid-token."""
    pid = planner.rsplit("-", 2)[-2]
    return next((n for n in ROUTERS if str(cluster.processes[n].pid) == pid), planner)
