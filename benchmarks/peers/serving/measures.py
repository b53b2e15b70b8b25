"""What is measured of a server, and what each result is called."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.peers.measures import Measure, Metric
from benchmarks.peers.serving.interference import measure_interference
from benchmarks.peers.serving.rates import RATES, measure_rate, rate_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers.measures import Prompts
    from benchmarks.peers.serving.base import Server

INTERFERENCE_METRICS = {
    "quiet_itl_p50_ms": Metric("steady streams alone: ITL p50", "ms", False),
    "quiet_itl_p99_ms": Metric("steady streams alone: ITL p99", "ms", False),
    "quiet_tok_s": Metric("steady streams alone: output", "tok/s", True),
    "burst_itl_p50_ms": Metric("under bursts: steady streams' ITL p50", "ms", False),
    "burst_itl_p99_ms": Metric("under bursts: steady streams' ITL p99", "ms", False),
    "burst_tok_s": Metric("under bursts: steady streams' output", "tok/s", True),
    "burst_ttft_ms": Metric("bursts' own time to first token, median", "ms", False),
}


def _rate_metrics() -> Iterator[tuple[str, Metric]]:
    for rate in RATES:
        name, title = rate_name(rate), f"{rate:g} requests/s"
        for latency in ("ttft", "itl"):
            for percentile in (50, 99):
                metric = Metric(f"{title}: {latency.upper()} p{percentile}", "ms", False)
                yield f"{name}_{latency}_p{percentile}_ms", metric
        yield f"{name}_tok_s", Metric(f"{title}: output", "tok/s", True)


RATE_METRICS = dict(_rate_metrics())


def interference(seconds: float) -> Measure:
    """The interference test with two windows of so many seconds."""

    def run(server: Server, prompts: Prompts) -> Iterator[tuple[str, float]]:
        return measure_interference(server.url, prompts, seconds=seconds)

    return Measure("interference", ("burst_itl_p99_ms", *INTERFERENCE_METRICS), run)


def rates(model: str, seconds: float) -> list[Measure]:
    """One measure for each of the request rates."""
    return [
        Measure(
            f"rate-{rate:g}",
            tuple(name for name in RATE_METRICS if name.startswith(f"{rate_name(rate)}_")),
            partial(_run_rate, model=model, rate=rate, seconds=seconds),
        )
        for rate in RATES
    ]


def _run_rate(
    server: Server, prompts: Prompts, *, model: str, rate: float, seconds: float
) -> Iterator[tuple[str, float]]:
    # The load generator draws its own prompts; from here it only needs another seed every time.
    seed = prompts.draw(1)[0]
    return measure_rate(server.url, model=model, rate=rate, seconds=seconds, seed=seed)
