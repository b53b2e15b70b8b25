"""What is measured: workloads and how they are scaled, loads, spans, repetitions, the SLO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.pareto.bars import MODES
from benchmarks.pareto.results import Slo
from benchmarks.routing.traces import NAMES
from benchmarks.routing.workloads import Scale

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.routing.traces import Arrival

#: Of the real workers: tokens of a block, and of the longest sequence.
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
SIMULATED_SLO = Slo(ttft_ms=1000.0, itl_ms=30.0)
#: What a token of an answer counts in tokens of a prompt. It only weighs requests of one workload
#: against each other: the capacity is measured in the same unit.
ANSWER_WEIGHT = 2.5


def work_ms(arrival: Arrival) -> float:
    """A request's work for the real workers, in a unit of its own (see ANSWER_WEIGHT)."""
    return arrival.num_tokens + ANSWER_WEIGHT * arrival.num_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload at one load with the requests of one repetition."""

    workload: str
    load: float
    repetition: int

    @property
    def seed(self) -> int:
        """Of its requests and their times."""
        return 1 + self.repetition


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A whole measurement."""

    workloads: tuple[str, ...]
    loads: tuple[float, ...]
    span_s: float
    repetitions: int
    slo: Slo = SIMULATED_SLO
    #: Of the real workers' requests, see `scale`.
    size: float = 1.0
    time: float = 1.0
    #: Of the closed loop that finds the capacity.
    capacity_s: float = 20.0

    def cases(self) -> Iterator[Case]:
        """All cases, a whole repetition before the next one."""
        for repetition in range(self.repetitions):
            for workload in self.workloads:
                for load in self.loads:
                    yield Case(workload=workload, load=load, repetition=repetition)

    def turns(self, systems: Sequence[str] = MODES) -> Iterator[tuple[Case, str]]:
        """All cells in the order of measuring: the systems go forth, then back."""
        for number, case in enumerate(self.cases()):
            for system in systems if number % 2 == 0 else reversed(systems):
                yield case, system

    def scale(self, workload: str) -> Scale:
        """Return that of the real workers. Their answers, relative to prompts, take less time than
        those of the model that the sizes are meant for, so they are twice as long. Prompts of
        Mooncake are four times as long as those of the others.
        """
        is_trace = workload in NAMES
        return Scale(
            prompt=self.size / 4 if is_trace else self.size,
            answer=self.size if is_trace else 2 * self.size,
            time=self.time,
            block_size=BLOCK_SIZE,
            max_tokens=MAX_MODEL_LEN,
        )

    def settings(self) -> dict[str, Any]:
        """What two parts of one run have in common. Workloads and repetitions may be added."""
        return {"span_s": self.span_s, "size": self.size, "time": self.time}
