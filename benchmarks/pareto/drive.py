"""Puts the requests of a case on a server: an open loop, and a closed one for the capacity."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from typing import TYPE_CHECKING

from benchmarks.load.asking.client import CompletionClient
from benchmarks.load.asking.server import open_http
from benchmarks.load.runner import run_open_loop
from benchmarks.load.settings import ServerSettings
from benchmarks.pareto.choice import ANSWER_WEIGHT
from benchmarks.pareto.results import Answer
from benchmarks.peers.serving.base import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

    from benchmarks.load.outcome import Outcome
    from benchmarks.load.runner import Run
    from benchmarks.load.workload.arrivals import Arrival
    from benchmarks.load.workload.sample import Sample

TIMEOUT_S = 120.0
#: Requests at a time in the closed loop, and its seconds before anything is counted.
CONCURRENCY = 16
SETTLE_S = 3.0


async def ask_in_time(
    url: str, samples: Sequence[Sample], due: Sequence[Arrival], on_done: Callable[[], None]
) -> Run:
    """Send each sample at its time, whatever the server does; wait for all answers."""
    gc.collect()
    gc.freeze()
    try:
        async with open_http(ServerSettings(base_url=url)) as http:
            return await run_open_loop(
                _client(http), samples, due, max_concurrency=None, on_done=lambda _: on_done()
            )
    finally:
        gc.unfreeze()


async def find_capacity(url: str, samples: Sequence[Sample], seconds: float) -> float:
    """Keep `CONCURRENCY` requests running; return the work that is done in a second, in the unit of
    `choice.work_ms`. A prompt counts when its first token comes, an answer token by token.

    Raises:
        RuntimeError: a request failed.
    """
    # Again from the beginning where they do not suffice: then prefixes hit.
    waiting = itertools.cycle(samples)
    done: list[tuple[Sample, Outcome]] = []
    async with open_http(ServerSettings(base_url=url)) as http:
        client = _client(http)
        started_s = time.perf_counter()
        end_s = started_s + seconds

        async def one_after_the_other(number: int) -> None:
            for count in itertools.count():
                if time.perf_counter() > end_s:
                    return
                sample = next(waiting)
                done.append((sample, await client.complete(sample, f"{number}-{count}")))

        await asyncio.gather(*(one_after_the_other(n) for n in range(CONCURRENCY)))
    error = next((outcome.error for _, outcome in done if outcome.error), "")
    if error:
        raise RuntimeError(f"the capacity was not found: {error}")
    begin_s = started_s + SETTLE_S
    return sum(work_inside(s, o, begin_s, end_s) for s, o in done) / (end_s - begin_s)


def work_inside(sample: Sample, outcome: Outcome, begin_s: float, end_s: float) -> float:
    """Return what was done of a request in that time."""
    times_s = outcome.chunk_times_s()
    inside = [begin_s <= at_s < end_s for at_s in times_s]
    tokens = sum(inside) * sample.output_len / len(times_s)
    return inside[0] * sample.prompt_len + ANSWER_WEIGHT * tokens


def answers_of(run: Run, samples: Sequence[Sample], due: Sequence[Arrival]) -> list[Answer]:
    """Return what is kept of every request."""
    return [
        Answer(
            at_s=round(arrival.at_s, 4),
            num_prompt=sample.prompt_len,
            num_output=outcome.output_len or outcome.num_chunks,
            ttft_ms=round(outcome.ttft_s * 1000, 2),
            itl_ms=round(_mean_gap_ms(outcome), 3),
            max_gap_ms=round(max(outcome.itls_s, default=0.0) * 1000, 2),
            error=outcome.error,
        )
        for sample, arrival, outcome in zip(samples, due, run.outcomes, strict=True)
    ]


def _mean_gap_ms(outcome: Outcome) -> float:
    num_tokens = outcome.output_len or outcome.num_chunks
    if num_tokens <= 1:
        return 0.0
    return (outcome.latency_s - outcome.ttft_s) * 1000 / (num_tokens - 1)


def _client(http: httpx.AsyncClient) -> CompletionClient:
    return CompletionClient(
        http,
        endpoint="/v1/completions",
        chat=False,
        body={"model": MODEL_NAME, "ignore_eos": True, "temperature": 0.0},
        request_id_prefix="pareto-",
        timeout_s=TIMEOUT_S,
    )
