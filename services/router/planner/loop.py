"""The planner's loop in one router: report, and if it leads, decide and act."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from services.router.planner.report import Report, together
from services.router.planner.shown import Published, ShownDecision, shown
from services.router.planning.base import Counts
from services.router.planning.planner import Planner
from services.router.planning.pools import by_start
from shared.errors import BatonError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.planner.board import Board, Exchange
    from services.router.planner.view import PoolView
    from services.router.planning.base import Bounds, Decision, Limits, Move, Mover
    from services.router.planning.counts import Pace
    from services.router.workers.endpoint import Endpoint

log = structlog.get_logger(__name__)

#: Decisions that the live page shows.
MAX_SHOWN = 20
#: A move that was claimed is made within this time, or not at all: another may lead by then.
CLAIM_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is planned for, and how."""

    model: str
    acts: bool
    bounds: Bounds
    limits: Limits
    pace: Pace
    interval_s: float
    #: This router's name, for people.
    router: str


class PlannerLoop:
    """Plans one model's workers. `run` runs beside the pool; everything else reads."""

    def __init__(
        self,
        plan: Plan,
        view: PoolView,
        endpoints: Callable[[], Iterable[Endpoint]],
        board: Board,
        mover: Mover,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plan for the workers that `endpoints` returns: all live ones."""
        self.plan = plan
        #: Must be told of every request.
        self.view = view
        self._endpoints = endpoints
        self._board = board
        self._mover = mover
        self._clock = clock
        self._planner: Planner | None = None
        self._term = 0
        self._last_report: Report | None = None
        #: The newest ones, last one last; of other routers only the newest is known.
        self.decisions: deque[ShownDecision] = deque(maxlen=MAX_SHOWN)
        #: Moves that were made, by whichever router.
        self.num_moves = 0
        #: The name of the router that decided last.
        self.leader = ""
        self.leads = False
        self._warned: tuple[str, ...] = ()
        self._encoder = msgspec.msgpack.Encoder()
        self._reports = msgspec.msgpack.Decoder(Report)
        self._published = msgspec.msgpack.Decoder(Published)

    async def run(self) -> None:
        """Look once per interval until cancelled, then give up the lead."""
        try:
            while True:
                await asyncio.sleep(self.plan.interval_s)
                try:
                    await self.look()
                except (BatonError, OSError) as error:
                    # The workers stay as they are; no router is known to lead.
                    self.leads = False
                    log.warning("planner_waits", model=self.plan.model, error=str(error))
                except Exception:
                    # Whatever is wrong with a plan, requests go on.
                    log.exception("planner_failed", model=self.plan.model)
        finally:
            if self.leads:
                with suppress(BatonError, OSError):
                    await self._board.resign()

    async def look(self) -> None:
        """Report; decide and act if this router leads, or take note of what the leader says.

        Raises:
            BatonError: the other routers cannot be reached.
        """
        self._last_report = self.view.report()
        found = await self._board.exchange(self._encoder.encode(self._last_report))
        self._learn(found)
        if not found.leads:
            self.leads, self._planner = False, None
            return
        if self._planner is None or found.term != self._term:
            self._planner = self._lead(found)
        # Also after an exchange that failed, if the lease has outlasted that.
        self.leads = True
        planner, now_s = self._planner, self._clock()
        if found.moved_ago_s is not None:
            planner.moved(now_s - found.moved_ago_s)
        seen, speed = together(self._decoded(found), self._endpoints(), now_s=now_s)
        decision = planner.look(seen, speed)
        problem = "" if decision.move is None else await self._move(decision.move, found.term)
        made = decision.move is not None and not problem
        self.num_moves += made
        said = shown(decision, self._desired(decision), moved=made, not_moved=problem)
        self._log(said)
        self.decisions.append(said)
        note = Published(decision=said, num_moves=self.num_moves, leader=self.plan.router)
        self.leader = self.plan.router
        await self._board.decide(found.term, self._encoder.encode(note))

    def describe(self) -> dict[str, Any]:
        """Return what is known now, for JSON: bounds, speed, demand and the last decision."""
        report = self._last_report
        return {
            "acts": self.plan.acts,
            "leader": self.leader,
            "bounds": msgspec.to_builtins(self.plan.bounds),
            "speed": msgspec.to_builtins(self.view.speed()),
            "demand": None if report is None else msgspec.to_builtins(report.demand),
            "decision": msgspec.to_builtins(self.decisions[-1]) if self.decisions else None,
        }

    def _learn(self, found: Exchange) -> None:
        """Take what the last decision says, of whichever router."""
        if not found.decision:
            return
        try:
            said = self._published.decode(found.decision)
        except msgspec.MsgspecError:
            # Of a router of another version.
            return
        self.num_moves, self.leader = said.num_moves, said.leader
        if not self.decisions or self.decisions[-1] != said.decision:
            self.decisions.append(said.decision)

    def _decoded(self, found: Exchange) -> list[Report]:
        """Return the reports that can be read: this router's, and those of like versions."""
        reports = []
        for report in found.reports:
            with suppress(msgspec.MsgspecError):
                reports.append(self._reports.decode(report))
        return reports

    def _lead(self, found: Exchange) -> Planner:
        """Begin to lead: from what was wanted last, since those workers may be on their way."""
        plan, self._term = self.plan, found.term
        planner = Planner(
            plan.bounds, plan.limits, pace=plan.pace, move_cooldown_s=plan.pace.cooldown_s
        )
        if found.decision and self.decisions:
            last = self.decisions[-1]
            planner.begin(Counts(last.wanted_prefill, last.wanted_decode), self._clock())
        log.info("planner_leads", model=plan.model, term=found.term, num_routers=len(found.reports))
        return planner

    async def _move(self, move: Move, term: int) -> str:
        """Make a move; return why it was not made, or nothing."""
        if not self.plan.acts:
            return "the planner only advises"
        began_s = self._clock()
        if not await self._board.claim(term, cooldown_s=self.plan.pace.cooldown_s):
            return "another router leads, or has just moved a worker"
        left_s = CLAIM_S - (self._clock() - began_s)
        if left_s <= 0:
            return "the claim came too late"
        try:
            async with asyncio.timeout(left_s):
                await self._mover.prefer(move)
        except TimeoutError:
            # The order may have arrived all the same: the worker's next heartbeat tells.
            return f"{move.worker} did not answer within {CLAIM_S:.0f} s"
        except BatonError as error:
            return str(error)
        return ""

    def _desired(self, decision: Decision) -> Counts:
        """Return how many workers should be started with each role."""
        if not self.plan.acts:
            return decision.wanted
        roles = [endpoint.record.role for endpoint in self._endpoints()]
        started = Counts(roles.count(Role.PREFILL), roles.count(Role.DECODE))
        return by_start(decision.wanted, decision.present, started, self.plan.limits)

    def _log(self, said: ShownDecision) -> None:
        """Log a decision with its numbers, loudly only if something changes."""
        before = self.decisions[-1] if self.decisions else None
        changes = before is None or (
            (before.wanted_prefill, before.wanted_decode)
            != (said.wanted_prefill, said.wanted_decode)
        )
        tell = log.info if changes or said.moved else log.debug
        fields = msgspec.structs.asdict(said)
        del fields["at_s"]
        tell("planner_decision", model=self.plan.model, **fields)
        for warning in said.warnings:
            if warning not in self._warned:
                log.warning("planner_infeasible", model=self.plan.model, reason=warning)
        self._warned = said.warnings
