"""Ranks of a group as threads, or as copies of this process, which share what it has opened."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


class Copy:
    """A copy of this process that runs `work`, says what it returned or raised, and ends."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run(work, answer)
        os.close(answer)

    def result(self) -> Any:
        """Wait for its end; return what `work` returned, or raise what it raised."""
        with os.fdopen(os.dup(self._answer), "rb") as stream:
            data = stream.read()
        if not data:
            raise EOFError(f"process {self.pid} ended without an answer")
        value, error = pickle.loads(data)
        if error is not None:
            raise error
        return value

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, stopped or not, and forget it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._answer)


def _run(work: Callable[[], Any], answer: int) -> None:
    try:
        with os.fdopen(answer, "wb") as stream:
            try:
                done = work(), None
            except (BatonError, ValueError, AssertionError) as error:
                done = None, error
            stream.write(pickle.dumps(done))
    finally:
        os._exit(0)


@contextmanager
def copies(*works: Callable[[], Any]) -> Iterator[list[Copy]]:
    """Copies of this process; none is left afterwards."""
    made = []
    try:
        for work in works:
            made.append(Copy(work))  # noqa: PERF401 those that were made must end
        yield made
    finally:
        for each in made:
            each.end()


def as_threads(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all at once in threads; return their results in order."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


def as_processes(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all at once, the first here and the others in copies; return their results in order."""
    with copies(*works[1:]) as others:
        first = works[0]()
        return [first, *(each.result() for each in others)]
