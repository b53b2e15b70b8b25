"""The measures of a run, defined as by `vllm bench serve`, on the client's clock.

TTFT: send to first chunk with choices. ITL: gap between two such chunks. E2EL: send to the last.
TPOT: (E2EL - TTFT) / (output tokens - 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.load.outcome import Outcome

LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "client_queue_time": "Client queue",
    "e2el_including_client_queue": "E2EL + queue",
}
SLO_NAMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Of one latency over a run. All zero if there was no value."""

    mean_ms: float
    median_ms: float
    std_ms: float
    percentiles_ms: dict[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in numbers. `request_goodput` is None if no objective was set."""

    duration_s: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    max_lag_ms: float
    latencies: dict[str, Distribution]


def summarise(
    outcomes: Sequence[Outcome],
    duration_s: float,
    *,
    percentiles: Sequence[float],
    slos_ms: Mapping[str, float],
) -> Summary:
    """Compute all measures. Failed requests count in `failed` and nowhere else."""
    done = [outcome for outcome in outcomes if outcome.success]
    num_input = sum(outcome.prompt_len for outcome in done)
    num_output = sum(outcome.output_len for outcome in done)
    num_good = sum(is_good(outcome, slos_ms) for outcome in done)
    return Summary(
        duration_s=duration_s,
        completed=len(done),
        failed=len(outcomes) - len(done),
        total_input_tokens=num_input,
        total_output_tokens=num_output,
        request_throughput=len(done) / duration_s,
        request_goodput=num_good / duration_s if slos_ms else None,
        output_throughput=num_output / duration_s,
        total_token_throughput=(num_input + num_output) / duration_s,
        max_output_tokens_per_s=peak_chunks_per_s(done),
        max_concurrent_requests=peak_concurrency(done),
        max_lag_ms=max((outcome.lag_s * 1000 for outcome in outcomes), default=0.0),
        latencies={
            name: describe(values, percentiles) for name, values in latencies_s(done).items()
        },
    )


def latencies_s(done: Sequence[Outcome]) -> dict[str, list[float]]:
    """Every value of every latency. An answer of one token has no TPOT."""
    tpots = (tpot_s(outcome) for outcome in done)
    return {
        "ttft": [outcome.ttft_s for outcome in done],
        "tpot": [tpot for tpot in tpots if tpot is not None],
        "itl": [itl for outcome in done for itl in outcome.itls_s],
        "e2el": [outcome.latency_s for outcome in done],
        "client_queue_time": [outcome.client_queue_s for outcome in done],
        "e2el_including_client_queue": [
            outcome.latency_s + outcome.client_queue_s for outcome in done
        ],
    }


def tpot_s(outcome: Outcome) -> float | None:
    """Mean time of each output token after the first."""
    if outcome.output_len <= 1:
        return None
    return (outcome.latency_s - outcome.ttft_s) / (outcome.output_len - 1)


def is_good(outcome: Outcome, slos_ms: Mapping[str, float]) -> bool:
    """Whether every objective was met; a missing TPOT counts as 0."""
    values_s = {
        "ttft": outcome.ttft_s,
        "tpot": tpot_s(outcome) or 0.0,
        "e2el": outcome.latency_s,
    }
    return all(values_s[name] <= slo_ms / 1000 for name, slo_ms in slos_ms.items())


def describe(values_s: Sequence[float], percentiles: Sequence[float]) -> Distribution:
    """Statistics in milliseconds; the deviation is that of the population."""
    values_ms = np.array(values_s or [0.0]) * 1000
    return Distribution(
        mean_ms=float(values_ms.mean()),
        median_ms=float(np.median(values_ms)),
        std_ms=float(values_ms.std()),
        percentiles_ms={p: float(np.percentile(values_ms, p)) for p in percentiles},
    )


def peak_chunks_per_s(done: Sequence[Outcome]) -> float:
    """Most chunks in one second, counted from the first request.

    Chunks, not tokens: vLLM counts so, and the two differ only where a chunk holds several.
    """
    first_s = min((outcome.start_s for outcome in done), default=0.0)
    times_s = [at_s - first_s for outcome in done for at_s in outcome.chunk_times_s()]
    return float(np.bincount(np.array(times_s, dtype=np.int64)).max()) if times_s else 0.0


def peak_concurrency(done: Sequence[Outcome]) -> int:
    """Most requests at the same moment; one that ends as another starts is not with it."""
    changes = [(outcome.start_s, 1) for outcome in done]
    changes += [(outcome.start_s + outcome.latency_s, -1) for outcome in done]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak


def token_rates(done: Sequence[Outcome], *, bin_s: float) -> tuple[list[float], list[float]]:
    """Output tokens per second in bins of `bin_s`: where the bins start, and their rates.

    A request's tokens are spread evenly over its chunks, so the area is the true total.
    """
    first_s = min((outcome.start_s for outcome in done), default=0.0)
    last_s = max((outcome.start_s + outcome.latency_s for outcome in done), default=0.0)
    rates = [0.0] * max(1, math.ceil((last_s - first_s) / bin_s))
    for outcome in done:
        tokens_per_chunk = outcome.output_len / outcome.num_chunks
        for at_s in outcome.chunk_times_s():
            index = min(int((at_s - first_s) / bin_s), len(rates) - 1)
            rates[index] += tokens_per_chunk / bin_s
    return [i * bin_s for i in range(len(rates))], rates
