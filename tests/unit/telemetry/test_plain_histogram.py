"""It counts what the Prometheus library's own histogram counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily

from shared.engine.pipeline.counters import EngineCounters
from shared.telemetry.buckets import REQUEST_TOKENS, STEP_TOKENS
from shared.telemetry.plain_histogram import PlainHistogram

VALUES = (0, 0.5, 1, 1.0001, 8, 9, 1e9)


def test_the_same_as_the_library_s() -> None:
    registry = CollectorRegistry()
    reference = Histogram("x", "x", buckets=(1, 8, 64), registry=registry)
    own = PlainHistogram((1, 8, 64))
    for value in VALUES:
        reference.observe(value)
        own.add(value)
    family = HistogramMetricFamily("x", "x")
    own.sample(family, ())
    [expected] = reference.collect()
    wanted = {(s.name, s.labels.get("le")): s.value for s in expected.samples}
    found = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert found == {key: value for key, value in wanted.items() if key[0] != "x_created"}


def test_buckets_are_in_order() -> None:
    assert list(REQUEST_TOKENS) == sorted(set(REQUEST_TOKENS))
    assert REQUEST_TOKENS[:4] == (1, 2, 5, 10)


def test_a_step_is_counted_once_whatever_its_size() -> None:
    counters = EngineCounters()
    for num_tokens in (1, 64, 65, 100_000):
        counters.add_step(num_tokens)
    assert counters["engine_steps"] == 4
    assert counters["computed_tokens"] == 100_130
    family = HistogramMetricFamily("steps", "steps")
    counters.step_sizes.sample(family, ())
    by_bound = {s.labels["le"]: s.value for s in family.samples if s.name == "steps_bucket"}
    assert (by_bound["1.0"], by_bound["64.0"], by_bound["128.0"]) == (1, 2, 3)
    assert (by_bound[f"{STEP_TOKENS[-1]}.0"], by_bound["+Inf"]) == (3, 4)
