"""The metrics of several processes as those of one.

Counters and histograms add up. They never fall: what an ended process said last still counts. A
gauge is a number of this router's requests, which add up, or of the cluster as each process knows
it, of which the largest is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Gauges that add up, without the prefix.
ADDED = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "num_tokens_waiting",
        "tenant_requests_waiting",
        "tenant_requests_inside",
    }
)
#: Gauges of which the smallest counts: 1 is good.
SMALLEST = frozenset({"directory_connected"})
_COUNTED = frozenset({"counter", "histogram"})
#: Of a counter, in the registry's own form: not a number to add.
_CREATED = "_created"

#: [name, text, type, [[sample's name, labels, value]]]
Family = list[Any]


def snapshot(families: Iterable[Metric]) -> list[Family]:
    """Return metrics for a message."""
    return [
        [
            family.name,
            family.documentation,
            family.type,
            [
                [sample.name, sample.labels, sample.value]
                for sample in family.samples
                if not sample.name.endswith(_CREATED)
            ],
        ]
        for family in families
    ]


class MetricSums:
    """What processes said last, by their numbers."""

    def __init__(self) -> None:
        self._last: dict[int, list[Family]] = {}
        #: The counters of those that have ended.
        self._ended: list[Family] = []

    def note(self, process: int, families: list[Family]) -> None:
        """Take what a process says now."""
        self._last[process] = families

    def end(self, process: int) -> None:
        """Keep the counters of a process that has ended."""
        counted = [family for family in self._last.pop(process, ()) if family[2] in _COUNTED]
        self._ended = added([counted, self._ended])

    def parts(self) -> list[list[Family]]:
        """Return what is to be added."""
        return [*self._last.values(), self._ended]


def added(processes: Iterable[Iterable[Family]]) -> list[Family]:
    """Return the families of all processes, each once, in the order in which they come."""
    texts: dict[str, tuple[str, str]] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for families in processes:
        for name, text, kind, samples in families:
            texts.setdefault(name, (text, kind))
            found = values.setdefault(name, {})
            for sample, labels, value in samples:
                key = sample, tuple(labels.items())
                before = found.get(key)
                found[key] = value if before is None else _both(name, kind, before, value)
    return [
        [
            name,
            text,
            kind,
            [[sample, dict(labels), value] for (sample, labels), value in values[name].items()],
        ]
        for name, (text, kind) in texts.items()
    ]


def _both(name: str, kind: str, one: float, other: float) -> float:
    plain = name.removeprefix("baton_").removeprefix("vllm:")
    if kind in _COUNTED or plain in ADDED:
        return one + other
    return min(one, other) if plain in SMALLEST else max(one, other)


class Shown:
    """Families as a registry has them, for the exposition."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for name, text, kind, samples in self._families:
            metric = Metric(name, text, kind)
            metric.samples = [Sample(*sample) for sample in samples]
            yield metric
