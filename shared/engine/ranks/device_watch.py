"""An end for waits that have none: those of the host for its device."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.engine.step.followers.followers import StepRunner
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep, StepResult
    from shared.ranks.base import DeviceCollective


#: Between looks at the time.
_LOOK_S = 0.2


class DeviceWatch:
    """Ends rank 0's wait for its device when the group is lost, or when it takes too long.

    A device that waits for another one in a recorded step waits without a limit, and the host with
    it. A thread watches the time; `end` may be called from any.
    """

    def __init__(
        self, sums: DeviceCollective, limit_s: float, lose: Callable[[RankError], None]
    ) -> None:
        """`lose`: told, in the thread of the watch, that a part takes too long; calls `end`."""
        self._sums = sums
        self._limit_s = limit_s
        self._lose = lose
        self._reason: RankError | None = None
        #: When the present part must be over; None: there is none.
        self._until: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="watch-device", daemon=True)
        self._thread.start()

    @contextmanager
    def part(self) -> Iterator[None]:
        """Do a piece of work in which the host may wait for its device.

        Raises:
            RankError: the group was lost meanwhile, so what the device has computed is wrong.
        """
        self._until = time.monotonic() + self._limit_s
        try:
            yield
        except Exception as error:
            if self._reason is not None:
                raise self._reason from error
            raise
        finally:
            self._until = None
        if self._reason is not None:
            raise self._reason

    def end(self, reason: RankError) -> None:
        """End the present wait, and all later ones."""
        self._reason = self._reason or reason
        self._sums.abort(reason)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closing.set()

    def _live(self) -> None:
        while not self._closing.wait(_LOOK_S):
            until = self._until
            if until is not None and time.monotonic() > until:
                message = f"the device of rank 0 did not end a step within {self._limit_s:g} s"
                self._lose(RankError(f"{message}: another rank is late"))
                return


class WatchedRunner:
    """A `StepRunner` on a device. Raises RankError as `DeviceWatch.part` does."""

    num_stages = 1

    def __init__(self, runner: StepRunner, watch: DeviceWatch) -> None:
        self._runner = runner
        self._watch = watch

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """See `ModelRunner`."""
        self._runner.keep_hidden(needs)

    def launch(self, plan: StepPlan) -> RunningStep:
        """See `ModelRunner`."""
        with self._watch.part():
            return self._runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        """See `ModelRunner`."""
        with self._watch.part():
            return self._runner.collect(step)
