"""The router that plans for all is lost while it moves a worker."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.faults.broken.told_planner import WISH
from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.system import planners
from benchmarks.faults.system.cluster import ROUTERS
from benchmarks.faults.wire.connection import Channel, Connection, Way
from services.router.planner.open import LEAST_LEASE_S

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.system.cluster import Cluster
    from benchmarks.faults.wire.zmtp import Message

MODULE = "benchmarks.faults.broken.told_planner"
#: Longer than the lease: the next leader has to know of the last move.
COOLDOWN_S = 6.0
FLAGS = (
    "--planner", "act", "--planner-interval-s", "0.05", "--planner-cooldown-s", f"{COOLDOWN_S:g}",
)  # fmt: skip
#: The lease, and time for a busy machine.
TAKEN_OVER_S = LEAST_LEASE_S + 2.0
#: From the end of a cooldown, or a wish, to the worker that has the order.
MOVED_S = 3.0
#: After the last order: another one would have come by then.
SETTLED_S = 1.0
_POLL_S = 0.02
_ORDER = b"/baton.v1.Worker/Prefer"
#: A worker's line about a new preference.
_PREFERS = re.compile(rb"\bprefers\b.*\brole\W+(\w+)")


class HeldOrder:
    """A filter that keeps the first order of a router's planner, and what follows it."""

    def __init__(self, router: str) -> None:
        self._router = router
        self._kept: tuple[Connection, Way, bytes] | None = None
        self.met = asyncio.Event()

    def take(self, connection: Connection, way: Way, unit: bytes | Message) -> bool:
        """See `Filter`."""
        if self._kept is not None or connection.channel is not Channel.GRPC:
            return False
        if connection.source != self._router or not isinstance(unit, bytes) or _ORDER not in unit:
            return False
        self._kept = connection, way, unit
        connection.hold(way)
        self.met.set()
        return True

    def let_go(self) -> None:
        """Let it arrive after all."""
        if self._kept is not None:
            connection, way, unit = self._kept
            connection.write(way, unit)
            connection.release(way)


class PlannerLost(Fault):
    """A signal to the router that leads. It has claimed a move, and the order is on its way.

    Of a router that is killed the order is lost: the next leader has to give it, and not before the
    cooldown is over. Of one that stops it arrives; the next leader is then told the opposite, just
    as the old one wakes up.
    """

    is_crash = True

    def __init__(self, word: str, number: signal.Signals) -> None:
        self.name = f"{word} planner"
        self._number = number
        self._orders = ["prefill"] if number is signal.SIGKILL else ["prefill", "decode"]

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        _tell(scene.cluster, "")
        for name in ROUTERS:
            scene.cluster.processes[name].environ[WISH] = str(_wish(scene.cluster))
            scene.cluster.restart(name, *FLAGS, module=MODULE)
        await scene.cluster.wait_ready()

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        cluster = scene.cluster
        lead = await planners.lead(cluster)
        if lead is None:
            scene.problems.append("no router leads")
            return
        scene.target, moved = lead.router, _movable(scene, lead.router)
        before = len(_preferences(cluster, moved))
        order = HeldOrder(lead.router)
        cluster.hub.filters.append(order)
        _tell(cluster, f"{moved} prefill")
        try:
            await asyncio.wait_for(order.met.wait(), MOVED_S)
        except TimeoutError:
            scene.problems.append(f"{lead.router} leads and does not act")
        cluster.signal(lead.router, self._number)
        cluster.hub.filters.remove(order)
        if self._number is not signal.SIGKILL:
            order.let_go()
        scene.start(self._taken_over(scene, lead, moved, before))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()
        if self._number is signal.SIGKILL:
            scene.cluster.restart(scene.target, *FLAGS, module=MODULE)

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        cluster = scene.cluster
        await cluster.wait_ready()
        if wrong := await _disagreement(cluster):
            scene.problems.append(wrong)
        for name in cluster.of_role("decode"):
            await cluster.prefer(name, "decode")
        for name in ROUTERS:
            del cluster.processes[name].environ[WISH]
            cluster.restart(name)
        await planners.forget(cluster)

    async def _taken_over(
        self, scene: Scene, before: planners.Lead, moved: str, num_before: int
    ) -> None:
        """Another router leads in time, and gives the orders that are left to give, once."""
        cluster, struck_s = scene.cluster, time.monotonic()
        first_ms = await planners.moved_ms(cluster)
        while (now := await planners.lead(cluster)) is None or now.term == before.term:
            if time.monotonic() - struck_s > TAKEN_OVER_S:
                scene.problems.append(f"no router leads {TAKEN_OVER_S:g} s after {before.router}")
                break
            await asyncio.sleep(_POLL_S)
        wanted = self._orders[-1]
        if self._number is not signal.SIGKILL:
            _tell(cluster, f"{moved} {wanted}")
            cluster.signal(before.router, signal.SIGCONT)
        ends_s = time.monotonic() + COOLDOWN_S + MOVED_S
        while len(_preferences(cluster, moved)) < num_before + len(self._orders):
            if time.monotonic() > ends_s:
                break
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(SETTLED_S)
        orders = _preferences(cluster, moved)[num_before:]
        if orders != self._orders or await cluster.preference(moved) != wanted:
            scene.problems.append(f"{moved} came to prefer {orders}, wanted {self._orders}")
        passed_ms = await planners.moved_ms(cluster) - first_ms
        if passed_ms < COOLDOWN_S * 1000:
            scene.problems.append(f"the second move was claimed {passed_ms} ms after the first")


def _movable(scene: Scene, router: str) -> str:
    """Return the victim's decode worker; another one, if what it gets of the router is held."""
    cluster, own = scene.cluster, scene.choose("decode")
    if not any(one.holds(Way.OUT) for one in cluster.hub.between(router, own)):
        return own
    return next(name for name in cluster.of_role("decode") if name != own)


async def _disagreement(cluster: Cluster) -> str:
    """Return what is wrong with the planners of two routers that live; empty: nothing.

    One leads, and the reports are theirs: that of a lost router has faded.
    """
    ends_s = time.monotonic() + TAKEN_OVER_S
    while True:
        leads = [await cluster.metric(name, "baton_planner_leads") for name in ROUTERS]
        reporters = await planners.reporters(cluster)
        if sum(leads) == 1 and reporters == [*ROUTERS]:
            return ""
        if time.monotonic() > ends_s:
            return f"routers lead: {leads}; reports are of {reporters}"
        await asyncio.sleep(_POLL_S)


def _preferences(cluster: Cluster, worker: str) -> list[str]:
    """Return all that a worker has come to prefer, in order, by its log."""
    text = cluster.processes[worker].log.read_bytes()
    return [found.decode() for found in _PREFERS.findall(text)]


def _wish(cluster: Cluster) -> Path:
    return cluster.folder / "wish"


def _tell(cluster: Cluster, wish: str) -> None:
    """Tell the planners what to wish; none reads half of it."""
    new = _wish(cluster).with_suffix(".new")
    new.write_text(wish, encoding="utf-8")
    new.replace(_wish(cluster))
