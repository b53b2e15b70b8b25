"""Progress of a cluster's start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cli.processes import ServiceProcess
    from cli.start.readiness import ReadinessProbe

POLL_S = 0.1


class State(StrEnum):
    """Progress of one process."""

    STARTING = "starting"
    WAITING = "waiting for workers"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Status:
    """A process as displayed to the user."""

    name: str
    state: State
    log: Path


class StartWatch:
    """Waits until every router serves, with prefill workers if there are any, and every worker has
    joined each of them.
    """

    def __init__(
        self,
        routers: Sequence[ServiceProcess],
        workers: Sequence[ServiceProcess],
        probes: Sequence[ReadinessProbe],
        *,
        is_meant: Callable[[str], bool],
    ) -> None:
        """Watch these processes. One probe per router, in the same order, with `is_meant`."""
        self._is_meant = is_meant
        self._routers = routers
        self._workers = workers
        self._probes = probes

    def wait(
        self,
        show: Callable[[Sequence[Status]], None],
        *,
        require_running: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """Wait; call `show` with the progress.

        Raises:
            CommandError: it took too long, or `require_running` raised it.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            require_running()
            missing = [p.missing(is_meant=self._is_meant) for p in self._probes]
            joined = [{w.record.worker.name for w in probe.workers()} for probe in self._probes]
            statuses = self._statuses(missing, set.intersection(*joined))
            show(statuses)
            if all(status.state is State.READY for status in statuses):
                return
            if time.monotonic() > deadline_s:
                raise _too_slow(statuses, missing, timeout_s)
            time.sleep(POLL_S)

    def _statuses(self, missing: Sequence[Sequence[str] | None], joined: set[str]) -> list[Status]:
        found = []
        for router, lacks in zip(self._routers, missing, strict=True):
            state = State.WAITING if lacks else State.READY
            if lacks is None:
                state = State.STARTING
            found.append(Status(router.name, state, router.log))
        for worker in self._workers:
            state = State.READY if worker.name in joined else State.STARTING
            found.append(Status(worker.name, state, worker.log))
        return found


def _too_slow(
    statuses: Sequence[Status], missing: Sequence[Sequence[str] | None], timeout_s: float
) -> CommandError:
    late = [status for status in statuses if status.state is not State.READY]
    names = ", ".join(f"{status.name} ({status.state})" for status in late)
    lacks = dict.fromkeys(reason for said in missing for reason in said or ())
    reasons = f"; the router says: {'; '.join(lacks)}" if lacks else ""
    logs = " ".join(str(status.log) for status in late)
    return CommandError(
        f"not ready after {timeout_s:g} s: {names}{reasons}",
        advice=f"look into {logs}, or allow more time with --start-timeout-s",
    )
