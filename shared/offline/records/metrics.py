"""An engine's metrics as vLLM's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.engine.engine_metrics import EngineCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from shared.engine.engine_stats import EngineStats

_OURS, _THEIRS = "baton_", "vllm:"
_VECTOR = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass
class Metric:
    """A metric with one set of labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Numbers that only grow, by position."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number."""

    value: float


@dataclass
class Histogram(Metric):
    """How many observations were at most each bound, with their number and sum."""

    count: int
    sum: float
    buckets: dict[str, int]


def read_metrics(stats: Callable[[], EngineStats], *, model: str) -> list[Metric]:
    """Return the metrics under vLLM's names, in the order of Prometheus's page."""
    return [
        metric
        for family in EngineCollector(stats, model=model).collect()
        for metric in _read(family)
    ]


def _read(family: Family) -> Iterator[Metric]:
    name = _THEIRS + family.name.removeprefix(_OURS)
    if name == _VECTOR:
        by_position = sorted(
            (int(sample.labels["position"]), int(sample.value)) for sample in family.samples
        )
        if by_position:
            labels = {k: v for k, v in family.samples[0].labels.items() if k != "position"}
            yield Vector(name, labels, [value for _, value in by_position])
    elif family.type == "histogram":
        yield from _histograms(name, family)
    else:
        for sample in family.samples:
            if family.type == "counter":
                yield Counter(name, dict(sample.labels), int(sample.value))
            else:
                yield Gauge(name, dict(sample.labels), sample.value)


def _histograms(name: str, family: Family) -> Iterator[Histogram]:
    found: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        one = found.setdefault(tuple(labels.items()), Histogram(name, labels, 0, 0.0, {}))
        if sample.name.endswith("_bucket"):
            one.buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_count"):
            one.count = int(sample.value)
        elif sample.name.endswith("_sum"):
            one.sum = sample.value
    yield from found.values()
