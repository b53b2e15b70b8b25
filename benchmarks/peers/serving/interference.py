"""Streams that run steadily, and long prompts that come in bursts: who waits for whom?

Eight streams of 64 → 256 tokens, each begun anew when it ends; with bursts, two prompts of 2048
tokens every four seconds. Gaps between the chunks of the steady streams count if they begin inside
the window: a stall that outlasts it counts whole.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.peers.serving.stream import answer, chunk_times, open_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from benchmarks.peers.measures import Prompts

NUM_STREAMS, STREAM_INPUT, STREAM_OUTPUT = 8, 64, 256
BURST_SIZE, BURST_INPUT, BURST_EVERY_S = 2, 2048, 4.0
#: Until here the streams are only getting started.
SETTLE_S = 3.0


@dataclass(slots=True)
class Phase:
    """What the clients saw. Gaps are (begin, length) on one clock."""

    gaps_s: list[tuple[float, float]] = field(default_factory=list)
    steady_ttfts_s: list[float] = field(default_factory=list)
    burst_ttfts_s: list[float] = field(default_factory=list)
    #: Of answers that were read to their end.
    num_chunks: int = 0
    num_answers: int = 0


def measure_interference(
    url: str, prompts: Prompts, *, seconds: float
) -> Iterator[tuple[str, float]]:
    """One window without bursts, one with."""
    for name, bursts in (("quiet", False), ("burst", True)):
        started_s = time.perf_counter()
        phase = asyncio.run(run_phase(url, prompts, seconds=seconds, bursts=bursts))
        window = (started_s + SETTLE_S, started_s + seconds)
        for metric, value in summarise_phase(phase, window):
            yield f"{name}_{metric}", value


async def run_phase(url: str, prompts: Prompts, *, seconds: float, bursts: bool) -> Phase:
    """Load the server for so long, and until every burst is answered."""
    phase = Phase()
    async with open_client(url) as http:
        steady = [
            asyncio.create_task(_keep_streaming(http, prompts, phase)) for _ in range(NUM_STREAMS)
        ]
        try:
            window = asyncio.create_task(_bursts(http, prompts, phase, seconds, bursts))
            # A stream that fails ends the phase.
            done, _ = await asyncio.wait([window, *steady], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in steady:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*steady, return_exceptions=True)
    return phase


def summarise_phase(phase: Phase, window: tuple[float, float]) -> Iterator[tuple[str, float]]:
    """Gaps, rate and times to first token of one phase."""
    begin_s, end_s = window
    inside = [length for begin, length in phase.gaps_s if begin_s <= begin < end_s]
    yield "itl_p50_ms", float(np.percentile(inside, 50)) * 1e3
    yield "itl_p99_ms", float(np.percentile(inside, 99)) * 1e3
    per_chunk = 1.0
    if phase.num_chunks:
        per_chunk = phase.num_answers * STREAM_OUTPUT / phase.num_chunks
    yield "tok_s", len(inside) * per_chunk / (end_s - begin_s)
    yield "steady_ttft_ms", median(phase.steady_ttfts_s) * 1e3
    if phase.burst_ttfts_s:
        yield "ttft_ms", median(phase.burst_ttfts_s) * 1e3


async def _keep_streaming(http: httpx.AsyncClient, prompts: Prompts, phase: Phase) -> None:
    while True:
        before_s, num_chunks = time.perf_counter(), 0
        async for at_s in chunk_times(http, prompts.draw(STREAM_INPUT), STREAM_OUTPUT):
            length_s = at_s - before_s
            if num_chunks:
                phase.gaps_s.append((before_s, length_s))
            else:
                phase.steady_ttfts_s.append(length_s)
            before_s, num_chunks = at_s, num_chunks + 1
        phase.num_chunks += num_chunks
        phase.num_answers += 1


async def _bursts(
    http: httpx.AsyncClient, prompts: Prompts, phase: Phase, seconds: float, wanted: bool
) -> None:
    """Last as long as the window, and until what was asked in it is answered."""
    end_s = time.perf_counter() + seconds
    asked: list[asyncio.Task[float]] = []
    await asyncio.sleep(BURST_EVERY_S)
    # No burst so late that its effect lies outside of the window.
    while wanted and time.perf_counter() < end_s - 1:
        burst = [answer(http, prompts.draw(BURST_INPUT), 1) for _ in range(BURST_SIZE)]
        asked += [asyncio.create_task(request) for request in burst]
        await asyncio.sleep(BURST_EVERY_S)
    await asyncio.sleep(max(0.0, end_s - time.perf_counter()))
    phase.burst_ttfts_s += await asyncio.gather(*asked)
