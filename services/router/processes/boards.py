"""Where the planners of all processes meet: see `Board`. The hub has one table for each model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.router.planner.board import Exchange
from services.router.processes.wire import Asked

if TYPE_CHECKING:
    from services.router.processes.link import Link


@dataclass(slots=True)
class PlannerTable:
    """One model's planners. A leader leads until it resigns or its process ends."""

    leader: int | None = None
    term: int = 0
    reports: dict[int, bytes] = field(default_factory=dict)
    decision: bytes = b""
    moved_s: float | None = None

    def exchange(self, process: int, report: bytes) -> list[Any]:
        """See Board."""
        self.reports[process] = report
        if self.leader is None:
            self.leader = process
            self.term += 1
        ago_s = None if self.moved_s is None else time.monotonic() - self.moved_s
        leads = self.leader == process
        return [leads, self.term, list(self.reports.values()), self.decision, ago_s]

    def claim(self, process: int, term: int, cooldown_s: float) -> bool:
        """See Board."""
        if not self._leads(process, term):
            return False
        now_s = time.monotonic()
        if self.moved_s is not None and now_s - self.moved_s < cooldown_s:
            return False
        self.moved_s = now_s
        return True

    def decide(self, process: int, term: int, decision: bytes) -> bool:
        """See Board."""
        leads = self._leads(process, term)
        if leads:
            self.decision = decision
        return leads

    def drop(self, process: int) -> None:
        """Forget a process, which ended or resigned."""
        self.reports.pop(process, None)
        if self.leader == process:
            self.leader = None

    def _leads(self, process: int, term: int) -> bool:
        return self.leader == process and self.term == term


class HubBoard:
    """See Board: the table of the hub, seen from a process."""

    def __init__(self, link: Link, model: str) -> None:
        self._link = link
        self._model = model

    async def exchange(self, report: bytes) -> Exchange:
        """See Board."""
        leads, term, reports, decision, ago_s = await self._link.ask(
            Asked.EXCHANGE, [self._model, report]
        )
        return Exchange(
            leads=leads, term=term, reports=reports, decision=decision, moved_ago_s=ago_s
        )

    async def claim(self, term: int, *, cooldown_s: float) -> bool:
        """See Board."""
        return bool(await self._link.ask(Asked.CLAIM, [self._model, term, cooldown_s]))

    async def decide(self, term: int, decision: bytes) -> bool:
        """See Board."""
        return bool(await self._link.ask(Asked.DECIDE, [self._model, term, decision]))

    async def resign(self) -> None:
        """See Board."""
        await self._link.ask(Asked.RESIGN, [self._model])
