"""One workload, and what was seen of it: every token with the time of its arrival."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Random prompts without shared prefixes, a fixed number at a time."""

    num_requests: int
    concurrency: int
    input_len: int
    output_len: int
    vocab_size: int

    def prompts(self, seed: int) -> list[list[int]]:
        """Other prompts for another seed, so that no run profits from another's cache."""
        rng = random.Random(seed)
        return [
            [rng.randrange(10, self.vocab_size) for _ in range(self.input_len)]
            for _ in range(self.num_requests)
        ]


@dataclass(frozen=True, slots=True)
class Trace:
    """One request on the client's clock."""

    sent_s: float
    token_times_s: tuple[float, ...]

    @property
    def ttft_ms(self) -> float:
        """Time to the first token."""
        return (self.token_times_s[0] - self.sent_s) * 1e3

    @property
    def itls_ms(self) -> list[float]:
        """Gaps between tokens."""
        times = self.token_times_s
        return [(b - a) * 1e3 for a, b in pairwise(times)]


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one pass."""

    traces: tuple[Trace, ...]
    duration_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return sum(len(trace.token_times_s) for trace in self.traces) / self.duration_s


async def drive(
    workload: Workload,
    ask: Callable[[str, Sequence[int], int], AsyncIterator[int]],
    *,
    seed: int,
) -> Run:
    """Keep `concurrency` requests running until all are answered.

    Raises:
        RuntimeError: an answer had another number of tokens than was asked for.
    """
    gate = asyncio.Semaphore(workload.concurrency)

    async def one(number: int, prompt: Sequence[int]) -> Trace:
        async with gate:
            sent_s = time.monotonic()
            times: list[float] = []
            async for num_tokens in ask(f"bench-{seed}-{number}", prompt, workload.output_len):
                times += [time.monotonic()] * num_tokens
        if len(times) != workload.output_len:
            raise RuntimeError(f"{len(times)} tokens instead of {workload.output_len}")
        return Trace(sent_s, tuple(times))

    started_s = time.monotonic()
    prompts = enumerate(workload.prompts(seed))
    traces = await asyncio.gather(*(one(number, prompt) for number, prompt in prompts))
    return Run(tuple(traces), time.monotonic() - started_s)
