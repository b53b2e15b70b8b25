"""Runs measures on engines that take turns: A B C, C B A, … with all others paused.

Engines stay loaded from the first repetition to the last. Loading vLLM takes longer than most
measures, and a paused process takes nothing from the one that runs; what a fresh start would vary
(where pages lie) is the price. Every visit draws new prompts, the same for all engines.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.background import Background, ThisProcess
from benchmarks.peers.measures import prompts_for, wake, warm_up
from benchmarks.peers.process import EngineProcess, PeerError, PeerUnavailableError
from benchmarks.peers.results import Sample
from benchmarks.peers.systems import Launch, System, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers.measures import Measure
    from benchmarks.peers.results import Results

SECTION = "engine"
START_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Entry:
    """A loaded system. `spent_s` is what each measure last took of it."""

    system: System
    process: EngineProcess


class Rotation:
    """Loaded engines of one model. A context manager: leaving it ends them all."""

    def __init__(self, model: str, results: Results, note: Callable[[str], None]) -> None:
        self._model = model
        self._results = results
        self._note = note
        self._entries: list[Entry] = []
        #: Seconds of the last visit, by measure and system.
        self.costs_s: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Rotation:
        return self

    def __exit__(self, *_: object) -> None:
        for entry in self._entries:
            entry.process.close()

    @property
    def systems(self) -> list[System]:
        """Those that are loaded."""
        return [entry.system for entry in self._entries]

    def load(self, system: System, launch: Launch) -> None:
        """Start, warm up and pause a system. What cannot be started is noted in the results."""
        reason = system.missing()
        if reason is None:
            self._note(f"{system.name}: loading {self._model}")
            reason = self._load(system, launch)
        if reason is not None:
            self._results.describe(SECTION, system.name, {"missing": reason})

    def visit(self, measure: Measure, systems: Sequence[System], repetition: int) -> None:
        """Measure each of the systems once; the order turns with every repetition."""
        entries = [entry for entry in self._entries if entry.system in systems]
        for entry in entries if repetition % 2 == 0 else reversed(entries):
            if measure.needs_prefix_sharing and not entry.system.shares_prefixes:
                continue
            self._note(f"{entry.system.name}: {measure.name}, {self._model}")
            started_s = time.monotonic()
            self._results.samples += self._measure(entry, measure, repetition)
            self.costs_s[measure.name, entry.system.name] = time.monotonic() - started_s

    def _load(self, system: System, launch: Launch) -> str | None:
        process = start(system, launch)
        try:
            facts = process.wait_ready(START_TIMEOUT_S)
            warm_up(process, prompts_for(self._model, seed=1))
        except PeerUnavailableError as error:
            process.close()
            return f"not available: {error}"
        except BaseException:
            process.close()
            raise
        process.pause()
        self._entries.append(Entry(system, process))
        self._results.describe(SECTION, system.name, facts)
        return None

    def _measure(self, entry: Entry, measure: Measure, repetition: int) -> Iterator[Sample]:
        prompts = prompts_for(self._model, seed=hash_seed(measure.name, repetition))
        process = entry.process
        process.resume()
        try:
            wake(process, prompts)
            background = Background([process, ThisProcess()])
            values = list(measure.run(process, prompts))
            cores = background.cores()
        except PeerError as error:
            raise PeerError(f"{entry.system.name}, {measure.name}: {error}") from error
        finally:
            process.pause()
        for metric, value in values:
            yield Sample(
                section=SECTION,
                model=self._model,
                system=entry.system.name,
                metric=metric,
                value=value,
                background_cores=round(cores, 3),
            )


def hash_seed(name: str, repetition: int) -> int:
    """A seed of its own for every visit, the same for every system and every run."""
    return int.from_bytes(name.encode(), "little") * 1000 + repetition + 2
