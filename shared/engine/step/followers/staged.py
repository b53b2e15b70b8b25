"""Results of a pipeline's steps: the last stage has them, and rank 0 needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.step.followers.plan_codec import decode_result, encode_result
from shared.errors import ConfigError, InternalError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.step.followers.followers import StepRunner
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep, StepResult
    from shared.ranks.base import PlanReceiver, PlanSender

_RESULT, _ERROR = b"r", b"e"


class FirstStage:
    """Rank 0's runner: `launch` returns when its stage is computed, `collect` when the last is.

    A result comes after every rank has written the keys and values of its step.
    """

    def __init__(
        self,
        runner: StepRunner,
        results: PlanReceiver,
        num_stages: int,
        lose: Callable[[RankError], None] = lambda _: None,
    ) -> None:
        """Make the runner. `runner`: of the stage alone, all of whose ranks it has compute a step.

        `lose`: told of a lost rank that a step has found, which is raised then.
        """
        self.num_stages = num_stages
        self._runner = runner
        self._results = results
        self._lose = lose
        #: Results that are not collected.
        self._num_due = 0

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """See `ModelRunner`.

        Raises:
            ConfigError: other ranks have the states.
        """
        raise ConfigError(
            f"pipeline_parallel_size {self.num_stages}: other ranks have the hidden states that "
            "drafts need; take speculation by ngram or suffix"
        )

    def launch(self, plan: StepPlan) -> RunningStep:
        """See `ModelRunner`.

        Raises:
            RankError: the next stage was lost, or waits for what this one could not compute.
        """
        try:
            step = self._runner.launch(plan)
            self._runner.collect(step)
        except RankError:
            raise
        except Exception as error:
            message = f"the first of {self.num_stages} stages failed a step: {error!r}"
            lost = RankError(message, rank=0)
            self._lose(lost)
            raise lost from error
        self._num_due += 1
        return step

    def collect(self, step: RunningStep) -> StepResult:
        """See `ModelRunner`.

        Raises:
            RankError: the last stage was lost.
            InternalError: it could not choose tokens.
        """
        data = self._receive()
        if data[:1] == _ERROR:
            raise InternalError(data[1:].decode())
        return decode_result(data[1:])

    def abandon(self) -> None:
        """Drop the results of steps that are in flight. Raises as `collect`."""
        while self._num_due:
            self._receive()

    def _receive(self) -> bytes:
        self._num_due -= 1
        try:
            return self._results.receive()
        except RankError as error:
            self._lose(error)
            raise


def send_result(results: PlanSender, outcome: StepResult | Exception) -> None:
    """Tell rank 0 the result of a step of the last stage, or why there is none.

    Raises:
        RankError: rank 0 was lost.
    """
    if isinstance(outcome, Exception):
        results.send(_ERROR + repr(outcome).encode())
    else:
        results.send(_RESULT + encode_result(outcome))
