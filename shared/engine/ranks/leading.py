"""Rank 0's runner and slots, whose every action the followers repeat."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from shared.engine.ranks.orders import KeepHidden, Kind, SetAdapter, encode_weights
from shared.engine.step.followers.plan_codec import encode_plan
from shared.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.engine.adapters.base import AdapterModel
    from shared.engine.ranks.orders import Order
    from shared.engine.step.followers.followers import StepRunner
    from shared.engine.step.hidden import HiddenNeeds
    from shared.engine.step.plan import StepPlan
    from shared.engine.step.result import RunningStep, StepResult
    from shared.model.adapted.base import AdapterWeights
    from shared.ranks.base import Collective, PlanSender

_STEP, _LAUNCH, _COLLECT = (bytes([kind]) for kind in (Kind.STEP, Kind.LAUNCH, Kind.COLLECT))


class LeadingRunner:
    """Rank 0's runner. A step that fails on every rank fails as it would on one alone.

    Raises RankError, from any method: a rank was lost, or failed where others did not.
    """

    num_stages = 1

    def __init__(
        self,
        runner: StepRunner,
        plans: PlanSender,
        collective: Collective,
        order: Callable[[Order], None],
        *,
        overlaps: bool,
        lose: Callable[[RankError], None],
    ) -> None:
        """`lose`: told of a lost rank that a step has found, which is raised then."""
        self._lose = lose
        self._runner = runner
        self._plans = plans
        self._collective = collective
        self._order = order
        self._overlaps = overlaps

    def keep_hidden(self, needs: HiddenNeeds) -> None:
        """See `ModelRunner`."""
        self._order(KeepHidden(needs.final, needs.layers))
        self._runner.keep_hidden(needs)

    def launch(self, plan: StepPlan) -> RunningStep:
        """See `ModelRunner`."""
        kind = _LAUNCH if self._overlaps else _STEP
        with self._losing():
            self._plans.send(kind + encode_plan(plan))
            with Agreed(self._collective, only_errors=True):
                return self._runner.launch(plan)

    def collect(self, step: RunningStep) -> StepResult:
        """See `ModelRunner`."""
        with self._losing():
            if self._overlaps:
                self._plans.send(_COLLECT)
            with Agreed(self._collective):
                return self._runner.collect(step)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except RankError as error:
            self._lose(error)
            raise


class Agreed:
    """A part of a step that all ranks do: at its end, each knows that all have done it.

    If all have failed, the error is raised as it is: their caches and rows are still the same.
    """

    def __init__(self, collective: Collective, *, only_errors: bool = False) -> None:
        """`only_errors`: the part goes on, unless it has failed."""
        self._collective = collective
        self._only_errors = only_errors

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Meet the others.

        Raises:
            RankError: a rank was lost, or not all ranks have failed.
        """
        if error is None and self._only_errors:
            return
        if isinstance(error, RankError) or not isinstance(error, Exception | None):
            return  # an interrupt ends the group at its next step
        failures = torch.tensor([0.0 if error is None else 1.0])
        self._collective.all_reduce(failures)
        if 0 < failures.item() < self._collective.size:
            rank, size = self._collective.rank, self._collective.size
            own = "" if error is None else f", rank {rank} by {error!r}"
            raise RankError(f"{failures.item():.0f} of {size} ranks failed a step{own}") from error


class LeadingSlots:
    """See `AdapterModel`: the slots of all ranks."""

    def __init__(self, model: AdapterModel, order: Callable[[Order], None]) -> None:
        self._model = model
        self._order = order

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdapterModel`."""
        self._order(SetAdapter(slot, None if weights is None else encode_weights(weights)))
        self._model.set_adapter(slot, weights)
