"""A fake model whose steps take time on a clock that only they, and tests, turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.engine.timing.step_work import StepWork
from tests.fakes.engine.engines import StepMode, make_engine
from tests.fakes.engine.model import FakeLoadedModel, FakeModel

if TYPE_CHECKING:
    import torch

    from shared.engine.engine import Engine
    from shared.engine.timing.step_model import StepCost
    from shared.model.attention.base import AttentionMetadata


class Clock:
    """Seconds; stands still unless it is turned."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Ticks(Clock):
    """Goes on by a millisecond whenever it is read: the same in every run."""

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


class TimedModel(FakeModel):
    """Turns its clock by what each step costs."""

    def __init__(self, cost: StepCost, clock: Clock) -> None:
        super().__init__()
        self._cost = cost
        self._clock = clock
        #: Of each step: its work and its milliseconds.
        self.steps: list[tuple[StepWork, float]] = []

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        metadata: AttentionMetadata = args[3]
        work = StepWork()
        for num, length in zip(metadata.query_lens_list, metadata.seq_lens_list, strict=True):
            if num > 1:
                work.add_prompt(num, length - num)
            else:
                work.num_decoding += 1
                work.num_context += length - 1
        took_ms = self._cost.step_ms(work)
        self.steps.append((work, took_ms))
        self._clock.now_s += took_ms / 1e3
        return super().forward(*args, **kwargs)


def timed_engine(
    cost: StepCost, mode: StepMode = StepMode.SYNCHRONOUS, **settings: Any
) -> tuple[Engine, TimedModel, Clock]:
    """An engine, its model and their clock. Overlapped, a fake step ends before it is waited for,
    so that its time would count as that of another one.
    """
    clock = Clock()
    model = TimedModel(cost, clock)
    engine = make_engine(FakeLoadedModel(model=model), mode, clock=clock, **settings)
    model.steps.clear()
    return engine, model, clock
