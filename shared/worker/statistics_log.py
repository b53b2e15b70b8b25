"""A line of statistics in the log, as vLLM writes it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.engine_stats import EngineStats

log = structlog.get_logger(__name__)

PERIOD_S = 10.0


def begin_statistics(
    read: Callable[[], EngineStats], *, is_disabled: bool
) -> set[asyncio.Task[None]]:
    """Return the task that logs the lines, if there is to be one; `read` as for the log."""
    return set() if is_disabled else {asyncio.create_task(StatisticsLog(read).run())}


class StatisticsLog:
    """Logs what the engine did since the line before; an idle engine says so once."""

    def __init__(
        self, read: Callable[[], EngineStats], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to count now. `read` returns the engine's statistics."""
        self._read = read
        self._clock = clock
        self._before = read()
        self._looked_s = clock()
        self._was_idle = True

    async def run(self, period_s: float = PERIOD_S) -> None:
        """Log a line in each period until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            self.look()

    def look(self) -> None:
        """Log the line of the time since the last call."""
        stats, now_s = self._read(), self._clock()
        before, self._before = self._before, stats
        passed_s, self._looked_s = max(now_s - self._looked_s, 1e-9), now_s

        def since(counter: str) -> int:
            return stats.counters.get(counter, 0) - before.counters.get(counter, 0)

        is_idle = not (since("engine_steps") or stats.num_running or stats.num_waiting)
        was_idle, self._was_idle = self._was_idle, is_idle
        if is_idle and was_idle:
            return
        queries = since("prefix_cache_queries")
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        hit_rate = since("prefix_cache_hits") / queries if queries else 0.0
        parts = [
            f"Avg prompt throughput: {since('computed_prompt_tokens') / passed_s:.1f} tokens/s",
            f"Avg generation throughput: {since('generation_tokens') / passed_s:.1f} tokens/s",
            f"Running: {stats.num_running} reqs",
            f"Waiting: {stats.num_waiting} reqs",
            f"KV cache usage: {used:.1%}",
            f"Prefix cache hit rate: {hit_rate:.1%}",
        ]
        if since("spec_decode_num_drafts"):
            accepted = since("spec_decode_num_accepted_tokens") / since("spec_decode_num_drafts")
            parts.append(f"Mean acceptance length: {1 + accepted:.2f}")
        log.info(", ".join(parts))
