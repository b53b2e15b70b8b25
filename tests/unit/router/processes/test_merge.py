"""The metrics of several processes add up, and counters never fall."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from services.router.processes.merge import MetricSums, Shown, added, snapshot


class Process:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter("baton_answers", "Answers.", ["model_name"], registry=self.registry)
        self.time = Histogram("baton_time", "Time.", buckets=(1, 2), registry=self.registry)
        self.running = Gauge("baton_num_requests_running", "Now.", registry=self.registry)
        self.ready = Gauge("baton_workers_ready", "Workers.", registry=self.registry)
        self.connected = Gauge("baton_directory_connected", "1.", registry=self.registry)


def exposed(sums: MetricSums) -> list[str]:
    text = generate_latest(Shown(added(sums.parts()))).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_numbers_of_requests_add_up_and_numbers_of_the_cluster_do_not() -> None:
    sums = MetricSums()
    for number in (1, 2):
        process = Process()
        process.answers.labels("m").inc(number)
        process.answers.labels(f"only {number}").inc()
        process.time.observe(1.5)
        process.running.set(number)
        process.ready.set(number)
        process.connected.set(number - 1)
        sums.note(number, snapshot(process.registry.collect()))
    whole = [
        'baton_answers_total{model_name="m"} 3.0',
        'baton_answers_total{model_name="only 2"} 1.0',
        'baton_answers_total{model_name="only 1"} 1.0',
        'baton_time_bucket{le="1.0"} 0.0',
        'baton_time_bucket{le="2.0"} 2.0',
        'baton_time_bucket{le="+Inf"} 2.0',
        "baton_time_count 2.0",
        "baton_time_sum 3.0",
    ]
    gauges = [
        "baton_num_requests_running 3.0",
        "baton_workers_ready 2.0",
        "baton_directory_connected 0.0",
    ]
    assert sorted(exposed(sums)) == sorted(whole + gauges)
    # The counters of one that ends stay; its requests are gone.
    sums.end(2)
    gauges = [
        "baton_num_requests_running 1.0",
        "baton_workers_ready 1.0",
        "baton_directory_connected 0.0",
    ]
    assert sorted(exposed(sums)) == sorted(whole + gauges)
    sums.end(1)
    sums.end(1)
    assert sorted(exposed(sums)) == sorted(whole)
