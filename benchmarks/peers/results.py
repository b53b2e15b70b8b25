"""The file that a run writes and everything else reads. Samples are kept one by one."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.statistics import Summary, summarise
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured value. `value` is in the unit of the metric."""

    section: str
    model: str
    system: str
    metric: str
    value: float
    #: Cores that processes outside the benchmark kept busy meanwhile.
    background_cores: float = 0.0
    #: How fast memory was read before and behind the visit, the higher one; None in older files.
    read_gb_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything about one run."""

    date: str
    machine: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    #: By section with model, and system: version and the like, or `missing` with the reason.
    systems: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    #: GB/s and GFLOP/s of this machine, by name.
    limits: dict[str, float] = field(default_factory=dict)
    #: What the time budget left out, in words.
    omitted: list[str] = field(default_factory=list)
    #: What broke, with the end of its log.
    failed: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def describe(self, section: str, system: str, facts: dict[str, Any]) -> None:
        """Note what a system says of itself."""
        self.systems.setdefault(section, {})[system] = facts

    def summaries(self, section: str, model: str) -> dict[str, dict[str, Summary]]:
        """By metric and system."""
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for sample in self.samples:
            if (sample.section, sample.model) == (section, model):
                values[sample.metric, sample.system].append(sample.value)
        summaries: dict[str, dict[str, Summary]] = {}
        for (metric, system), own in values.items():
            summaries.setdefault(metric, {})[system] = summarise(own)
        return summaries

    def limits_of(self, model: str, system: str, metric: str) -> dict[str, float]:
        """Limits beside an engine's result; memory's is that of the same visits, if it is known."""
        rates = [
            sample.read_gb_s
            for sample in self.samples
            if (sample.section, sample.model) == ("engine", model)
            and (sample.system, sample.metric) == (system, metric)
            and sample.read_gb_s is not None
        ]
        return self.limits | ({"dram_read_gb_s": median(rates)} if rates else {})

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        content = {"format": FORMAT} | asdict(self)
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(path)


def merge(runs: Sequence[Results]) -> Results:
    """Several runs as one; facts are those of the last.

    Limits are medians: on a shared host the memory of one run may be half as fast as of another,
    and no run's results belong under the limit of the fastest.

    Raises:
        ConfigError: there is none, or they are of different machines.
    """
    if not runs:
        raise ConfigError("no results were given")
    if any(run.machine != runs[0].machine for run in runs):
        raise ConfigError("these results are of different machines")
    merged = Results(date=runs[-1].date, machine=runs[-1].machine, settings=runs[-1].settings)
    for name in dict.fromkeys(name for run in runs for name in run.limits):
        merged.limits[name] = median(run.limits[name] for run in runs if name in run.limits)
    for run in runs:
        merged.omitted += run.omitted
        merged.failed += run.failed
        merged.samples += run.samples
        for section, systems in run.systems.items():
            for system, facts in systems.items():
                merged.describe(section, system, facts)
    return merged


def load_results(path: Path) -> Results:
    """Read a file that `save` wrote.

    Raises:
        ConfigError: it is not one.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ConfigError(f"{path} was written by another version of this benchmark")
        samples = [Sample(**sample) for sample in content.pop("samples")]
        return Results(**content, samples=samples)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} holds no results: {error!r}") from error
