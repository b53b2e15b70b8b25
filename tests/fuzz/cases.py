"""How many cases each surface gets, how they are counted, and what must hold after them."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import structlog
from hypothesis import HealthCheck, settings

from tests.accounting.effort import FULL, examples

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

#: Cases by surface, for the report at the end of the run.
COUNTS: Counter[str] = Counter()
#: What one case may take before it counts as a hang.
CASE_TIMEOUT_S = 30.0
#: Allocators keep some; what a leak of one object per case would take is far more.
MAX_GROWTH_BYTES = 32 * 2**20
#: Examples that are run once more, so often, to see whether memory grows.
NUM_REPEATED = 300
NUM_REPEATS = 20


def profile(quick: int, full: int) -> settings:
    """As many examples as this run is meant to have; a failure prints how to repeat it."""
    return settings(
        max_examples=examples(quick, full),
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


class Site:
    """A service on an event loop that runs while a case does, and what it must not do."""

    def __init__(self, surface: str) -> None:
        self.surface = surface
        self._runner = asyncio.Runner()
        self._runner.get_loop().set_exception_handler(self._on_exception)
        self.problems: list[str] = []
        self._again: list[Callable[[], Coroutine[Any, Any, Any]]] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end, in bounded time."""
        return self._runner.run(_in_time(work))

    def case(
        self, work: Callable[[], Coroutine[Any, Any, Any]], num_cases: int = 1, surface: str = ""
    ) -> Any:
        """Run one example of so many cases; nothing may have gone wrong by its end."""
        result = self.run(work())
        COUNTS[surface or self.surface] += num_cases
        assert not self.problems, self.problems
        if len(self._again) < NUM_REPEATED:
            self._again.append(work)
        return result

    def check_growth(self) -> None:
        """The same cases again and again take no more memory than once.

        Not measured while new ones come: Hypothesis remembers every example that it has drawn.
        """
        settled_bytes = 0
        for repeat in range(NUM_REPEATS if FULL else 2):
            for work in self._again:
                self.run(work())
            if repeat == 0:
                settled_bytes = memory_bytes()
        growth = memory_bytes() - settled_bytes
        assert growth < MAX_GROWTH_BYTES, f"{growth} bytes in {len(self._again)} cases"

    async def check_tasks(self, before: set[asyncio.Task[Any]]) -> None:
        """No more tasks than before the cases; some need a moment to end."""
        async with asyncio.timeout(10):
            while left := _ours(asyncio.all_tasks() - before - {asyncio.current_task()}):
                await asyncio.wait(left, timeout=0.1)

    def close(self) -> None:
        """End the loop."""
        self._runner.close()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = f"{context.get('message')}: {context.get('exception')!r}"
        # grpc.aio has one poller for a process; it still calls loops of tests before this one.
        if not ("PollerCompletionQueue" in problem and "Event loop is closed" in problem):
            self.problems.append(problem)


def _ours(tasks: set[asyncio.Task[Any] | None]) -> list[asyncio.Task[Any]]:
    """Without gRPC's own: a server always has one that waits for the next call, never the same."""
    return [
        task
        for task in tasks
        if task is not None
        and not getattr(task.get_coro(), "__qualname__", "").startswith("AioServer.")
    ]


@contextmanager
def open_site(surface: str) -> Iterator[Site]:
    """A site whose logs are watched: an error in them is a problem of the case that caused it."""
    site = Site(surface)

    def watch(_logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        is_bug = method in ("error", "exception", "critical") or event.get("known") is False
        # A worker whose record is nonsense is meant to be told so loudly.
        if is_bug and event.get("event") != "worker_refused":
            site.problems.append(repr(event))
        raise structlog.DropEvent

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            site.problems.append(self.format(record))

    handler = Handler(logging.ERROR)
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[watch])
    logging.getLogger().addHandler(handler)
    try:
        yield site
        assert not site.problems, site.problems
    finally:
        site.close()
        logging.getLogger().removeHandler(handler)
        structlog.configure(processors=before)


async def _in_time(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(CASE_TIMEOUT_S):
        return await work


def memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
