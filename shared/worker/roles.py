"""The roles of a worker: whose services it has, and the one for which routers prefer it.

A role is a preference. Its change moves no block and ends no request: the engine schedules for the
other role from its next step on, and routers hear of it with the next heartbeat, at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from shared.engine.settings.speculation import WITHOUT_MODEL
from shared.errors import DeadlineError, DrainingError, UnsupportedError
from shared.identity import Role
from shared.pooling.choice import runner_of
from shared.pooling.runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.thread.engine_thread import EngineThread
    from shared.worker.config import WorkerConfig
    from shared.worker.health.gate import RequestGate

log = structlog.get_logger(__name__)

BOTH = frozenset({Role.PREFILL, Role.DECODE})
ROLE_SERVICES = {Role.PREFILL: "baton.v1.Prefill", Role.DECODE: "baton.v1.Decode"}
#: Time for a change of preference whose caller names none: an engine's step, and a wide margin.
LONGEST_S = 10.0


def served_roles(config: WorkerConfig, role: Role, folder: Path) -> frozenset[Role]:
    """Return the roles whose services a worker has that starts with `role`.

    Both, except where it makes vectors alone, which is a service of prefill workers.

    Raises:
        ModelLoadError: the model's files cannot be read.
    """
    makes_only_vectors = runner_of(config.pooling, folder) is Runner.POOLING
    return frozenset({role}) if role is Role.PREFILL and makes_only_vectors else BOTH


def has_drafts(config: WorkerConfig, role: Role) -> bool:
    """Return whether a worker that starts with `role` guesses tokens.

    A prefill worker may never write an answer: it loads no model for drafts, and keeps no states
    of stages for them.
    """
    speculation = config.engine.speculation
    if speculation is None or role is Role.DECODE:
        return speculation is not None
    return speculation.method in WITHOUT_MODEL and config.ranks.pipeline_parallel_size == 1


class Preference:
    """The role for which routers prefer a worker. It outlives the worker's lives."""

    def __init__(self, first: Role) -> None:
        """`first`: the role that the process starts with."""
        self.first = self.role = first


class SchedulesForRole(Protocol):
    """Schedules the steps of a worker."""

    async def prefer(self, role: Role, before: Role) -> int:
        """Schedule for `role` from the next step on; return that step's number, from 1.

        If the call is cancelled, `before` counts again.
        """
        ...


class EngineRole:
    """See SchedulesForRole."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    async def prefer(self, role: Role, before: Role) -> int:
        """See SchedulesForRole."""
        progress = self._thread.progress

        def schedule_for_it(engine: Engine) -> int:
            engine.prefer(role)
            return progress.num_steps + 1

        return await self._thread.call(
            schedule_for_it, undo=lambda engine, _: engine.prefer(before)
        )


class WorkerRoles:
    """The roles of one life of a worker."""

    def __init__(
        self,
        name: str,
        preference: Preference,
        served: frozenset[Role],
        engine: SchedulesForRole,
        gate: RequestGate,
        *,
        limits: tuple[str, ...] = (),
    ) -> None:
        """Change `preference`, the process's, by orders.

        `limits`: what the worker lacks when it decodes, in words.
        """
        self._name = name
        self._preference = preference
        self.served = served
        self._engine = engine
        self._gate = gate
        self._limits = limits
        self._from_step = 1
        self._changing = asyncio.Lock()

    @property
    def first(self) -> Role:
        """The role that the worker started with."""
        return self._preference.first

    @property
    def preference(self) -> Role:
        """The role for which routers prefer the worker. May be read in any thread."""
        return self._preference.role

    @property
    def limits(self) -> tuple[str, ...]:
        """What the worker lacks in the preferred role because it started with another one."""
        return self._limits if self.preference is Role.DECODE else ()

    async def begin(self) -> None:
        """Have the engine of this life schedule for the present preference."""
        role = self._preference.role
        self._from_step = await self._engine.prefer(role, role)

    async def prefer(self, role: Role, timeout_s: float | None) -> int:
        """Prefer a role; return the first step that is scheduled for it. Safe to repeat.

        Raises:
            UnsupportedError: the worker has no service of the role.
            DrainingError: it takes no new work in any role.
            DeadlineError: the engine's step did not end in time; nothing has changed.
        """
        if role not in self.served:
            raise UnsupportedError(
                f"{self._name} makes vectors alone: it cannot prefer {role.value}", param="role"
            )
        if self._gate.draining:
            raise DrainingError(f"{self._name} is draining and takes no preference")
        try:
            async with asyncio.timeout(timeout_s or LONGEST_S), self._changing:
                return await self._prefer(role)
        except TimeoutError as error:
            raise DeadlineError(f"{self._name}: a step of its engine took too long") from error

    async def _prefer(self, role: Role) -> int:
        before = self._preference.role
        if role is not before:
            self._from_step = await self._engine.prefer(role, before)
            self._preference.role = role
            log.info("prefers", role=role.value, from_step=self._from_step)
            self._gate.report()
        return self._from_step
