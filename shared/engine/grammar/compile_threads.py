"""Threads for compilation. They are daemons: a compilation never delays the process's end."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class CompileThreads(Generic[T]):
    """At most this number of threads, which are started on demand."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._work: queue.SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []

    def submit(self, action: Callable[[], T]) -> Future[T]:
        """Run `action` when a thread is free. One caller at a time."""
        future: Future[T] = Future()
        self._work.put((future, action))
        if len(self._threads) < self._max_threads:
            name = f"grammar-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Let the threads end after the queued work. Returns at once."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, action = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = action()
            except Exception as error:  # noqa: BLE001 it belongs to the waiting caller
                future.set_exception(error)
            else:
                future.set_result(result)
