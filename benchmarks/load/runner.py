"""Sends samples at their times, whatever the server does meanwhile, and collects the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.load.outcome import Outcome
    from benchmarks.load.workload.arrivals import Arrival
    from benchmarks.load.workload.sample import Sample


class Completes(Protocol):
    """A client that gets the answer to a sample."""

    async def complete(self, sample: Sample, request_id: str) -> Outcome:
        """Send it and wait for the end. Raises nothing: failure is an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Outcomes in the order of the samples."""

    outcomes: list[Outcome]
    started: datetime
    duration_s: float


async def run_open_loop(
    client: Completes,
    samples: Sequence[Sample],
    arrivals: Sequence[Arrival],
    *,
    max_concurrency: int | None,
    on_done: Callable[[Outcome], None],
) -> Run:
    """Start each sample at its arrival; those over `max_concurrency` wait, which is noted."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    started, start_s = datetime.now(UTC).astimezone(), time.perf_counter()

    async def one(index: int, sample: Sample, arrived_s: float, lag_s: float) -> Outcome:
        async with gate:
            outcome = await client.complete(sample, str(index))
        outcome.client_queue_s = max(0.0, outcome.start_s - arrived_s)
        outcome.lag_s = lag_s
        on_done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = []
        for index, (sample, arrival) in enumerate(zip(samples, arrivals, strict=True)):
            due_s = start_s + arrival.at_s
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            arrived_s = time.perf_counter()
            tasks.append(group.create_task(one(index, sample, arrived_s, arrived_s - due_s)))
    duration_s = time.perf_counter() - start_s
    return Run(outcomes=[task.result() for task in tasks], started=started, duration_s=duration_s)


async def warm_up(
    client: Completes, samples: Sequence[Sample], *, max_concurrency: int | None
) -> str:
    """Send samples that are not measured. Returns the first error, or nothing."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()

    async def one(index: int, sample: Sample) -> str:
        async with gate:
            return (await client.complete(sample, f"warmup-{index}")).error

    errors = await asyncio.gather(*(one(i, sample) for i, sample in enumerate(samples)))
    return next(filter(None, errors), "")
