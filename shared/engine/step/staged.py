"""Results of a pipeline's steps: the last stage has them, and rank 0 needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.step.plan_codec import decode_result, encode_result
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.model_runner import ModelRunner, RunningStep, StepResult
    from shared.engine.step.plan import StepPlan
    from shared.ranks.base import PlanReceiver, PlanSender


class FirstStage:
    """Rank 0's runner: `launch` returns when its stage is computed, `collect` when the last is.

    A result comes after every rank has written the keys and values of its step.
    """

    def __init__(self, runner: ModelRunner, results: PlanReceiver) -> None:
        self._runner = runner
        self._results = results

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """See `ModelRunner`.

        Raises:
            ConfigError: other ranks have the states.
        """
        raise ConfigError(
            f"pipeline_parallel_size: drafts from hidden states ({needs}) need those of layers on "
            "other ranks; it must be 1, or take the method ngram or suffix"
        )

    def launch(self, plan: StepPlan) -> RunningStep:
        """See `ModelRunner`."""
        return self._runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        """See `ModelRunner`.

        Raises:
            RankError: the last stage was lost.
        """
        self._runner.collect(step)
        return decode_result(self._results.receive())


class LastStage:
    """The runner of the rank that tells rank 0 the results: the first one of the last stage."""

    def __init__(self, runner: ModelRunner, results: PlanSender) -> None:
        self._runner = runner
        self._results = results

    def launch(self, plan: StepPlan) -> RunningStep:
        """See `ModelRunner`."""
        return self._runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        """See `ModelRunner`; sends the result.

        Raises:
            RankError: rank 0 was lost.
        """
        result = self._runner.collect(step)
        self._results.send(encode_result(result))
        return result
