"""Runs measures on systems that take turns: A B C, C B A, … with all others paused.

Systems stay loaded from the first repetition to the last. Loading vLLM takes longer than most
measures, and a paused process takes nothing from the one that runs; what a fresh start would vary
(where pages lie) is the price. Every visit draws new prompts, the same for all systems.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.peers.engines.process import PeerError, PeerUnavailableError
from benchmarks.peers.machine.background import Background, ThisProcess
from benchmarks.peers.machine.description import measured_cores
from benchmarks.peers.machine.read_rate import ReadRate
from benchmarks.peers.measures import prompts_for
from benchmarks.peers.results import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers.engines.systems import Launch
    from benchmarks.peers.measures import Measure
    from benchmarks.peers.results import Results
    from benchmarks.peers.run.contestants import Contestant


class Rotation:
    """Loaded systems on one model. A context manager: leaving it ends them all."""

    def __init__(self, model: str, results: Results, note: Callable[[str], None]) -> None:
        self.model = model
        self._results = results
        self._note = note
        self._contestants: list[Contestant] = []
        self._read_rate = ReadRate(len(set(measured_cores())))
        #: Seconds of the last visit, by measure and system.
        self.costs_s: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Rotation:
        return self

    def __exit__(self, *_: object) -> None:
        for contestant in self._contestants:
            contestant.close()

    @property
    def names(self) -> list[str]:
        """Of those that are loaded."""
        return [contestant.name for contestant in self._contestants]

    def load(self, contestant: Contestant, launch: Launch) -> None:
        """Start, warm up and pause a system. What cannot be started is noted in the results."""
        self._note(f"{contestant.name}: loading {self.model}")
        reason = contestant.missing()
        facts = {"missing": reason} if reason else self._load(contestant, launch)
        self._results.describe(f"{contestant.section} {self.model}", contestant.name, facts)

    def takes(self, name: str, measure: Measure) -> bool:
        """Whether a system is loaded and can be measured so."""
        return any(c.name == name and c.takes(measure) for c in self._contestants)

    def visit(self, measure: Measure, names: Sequence[str], repetition: int) -> None:
        """Measure each of the systems once; the order turns with every repetition."""
        chosen = [c for c in self._contestants if c.name in names and c.takes(measure)]
        for contestant in chosen if repetition % 2 == 0 else reversed(chosen):
            self._note(f"{contestant.name}: {measure.name}, {self.model}, {repetition + 1}")
            started_s = time.monotonic()
            try:
                self._results.samples += list(self._measure(contestant, measure, repetition))
            except PeerError as error:
                # The others are still worth measuring.
                self._results.failed.append(f"{contestant.name}, {measure.name}: {error}")
                self._contestants.remove(contestant)
                contestant.close()
            self.costs_s[measure.name, contestant.name] = time.monotonic() - started_s

    def _load(self, contestant: Contestant, launch: Launch) -> dict[str, object]:
        try:
            facts = contestant.load(launch, self.model)
        except PeerUnavailableError as error:
            contestant.close()
            return {"missing": f"not available: {error}"}
        except PeerError as error:
            contestant.close()
            self._results.failed.append(f"{contestant.name}, loading: {error}")
            return {"missing": "it failed to start"}
        except BaseException:
            contestant.close()
            raise
        for tree in contestant.trees:
            tree.pause()
        self._contestants.append(contestant)
        return facts

    def _measure(
        self, contestant: Contestant, measure: Measure, repetition: int
    ) -> Iterator[Sample]:
        prompts = prompts_for(self.model, seed=visit_seed(measure.name, repetition))
        read_gb_s = self._read_rate.gb_s()
        trees = contestant.trees
        for tree in trees:
            tree.resume()
        try:
            contestant.wake(prompts)
            background = Background([*trees, ThisProcess()])
            values = list(measure.run(contestant.target, prompts))
            cores = background.cores()
        finally:
            for tree in trees:
                tree.pause()
        read_gb_s = max(read_gb_s, self._read_rate.gb_s())
        for metric, value in values:
            yield Sample(
                section=contestant.section,
                model=self.model,
                system=contestant.name,
                metric=metric,
                value=value,
                background_cores=round(cores, 3),
                read_gb_s=round(read_gb_s, 2),
            )


def visit_seed(name: str, repetition: int) -> int:
    """A seed of its own for every visit, the same for every system and every run."""
    return int.from_bytes(name.encode(), "little") * 1000 + repetition + 2
