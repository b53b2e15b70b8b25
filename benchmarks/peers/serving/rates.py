"""Random prompts of 512 tokens, answers of 128, Poisson arrivals: the project's load generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvloop
from rich.console import Console

from benchmarks.load.measurement import measure
from benchmarks.load.metrics import summarise
from benchmarks.load.plan import make_plan
from benchmarks.load.settings import (
    DataSettings,
    LoadSettings,
    RequestSettings,
    ResultSettings,
    ServerSettings,
    TrafficSettings,
)
from benchmarks.peers.engines.process import PeerError
from benchmarks.peers.models import MODELS
from benchmarks.peers.serving.base import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

RATES = (0.5, 1.0, 2.0)
INPUT_LEN, OUTPUT_LEN = 512, 128
MIN_REQUESTS = 16


def measure_rate(
    url: str, *, model: str, rate: float, seconds: float, seed: int
) -> Iterator[tuple[str, float]]:
    """Send at `rate` for about so long, and wait for all answers.

    Raises:
        PeerError: a request failed.
    """
    settings = LoadSettings(
        server=ServerSettings(base_url=url, served_model_name=MODEL_NAME),
        request=RequestSettings(temperature=0.0),
        traffic=TrafficSettings(
            num_prompts=max(MIN_REQUESTS, round(rate * seconds)),
            request_rate=rate,
            num_warmups=2,
            seed=seed,
        ),
        data=DataSettings(
            vocab_size=MODELS[model].vocab_size,
            random_input_len=INPUT_LEN,
            random_output_len=OUTPUT_LEN,
        ),
        result=ResultSettings(disable_progress=True),
    )
    plan = make_plan(settings)
    run = uvloop.run(measure(settings, plan, Console(quiet=True))).run
    summary = summarise(run.outcomes, run.duration_s, percentiles=(50, 99), slos_ms={})
    if summary.failed:
        error = next(outcome.error for outcome in run.outcomes if outcome.error)
        raise PeerError(f"{summary.failed} requests failed: {error}")
    name = rate_name(rate)
    for latency in ("ttft", "itl"):
        for percentile, value_ms in summary.latencies[latency].percentiles_ms.items():
            yield f"{name}_{latency}_p{percentile:g}_ms", value_ms
    yield f"{name}_tok_s", summary.output_throughput


def rate_name(rate: float) -> str:
    """In names of metrics."""
    return f"rate{rate:g}"
