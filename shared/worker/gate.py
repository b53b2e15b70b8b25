"""Counts the requests inside a worker; closed for new ones when it is full or drains."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.errors import DrainingError, OverloadedError, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Iterator


class RequestGate:
    """Every request passes through `enter`; `drain` waits until the last one has left."""

    def __init__(self, worker_name: str, *, max_inside: int | None = None) -> None:
        """`max_inside`: running and waiting together; None: any number."""
        self._worker_name = worker_name
        self._max_inside = max_inside
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def num_inside(self) -> int:
        """Requests that have not ended."""
        return self._num_inside

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold the gate for one request.

        Raises:
            DrainingError: the worker takes no new work.
            OverloadedError: as many are inside as may be; another worker may have a place.
        """
        if self.draining:
            raise DrainingError(f"{self._worker_name} is draining and takes no new requests")
        if self._max_inside is not None and self._num_inside >= self._max_inside:
            raise OverloadedError(
                f"{self._worker_name} has {self._num_inside} requests and takes no more",
                reason=RefusalReason.WORKER_FULL,
            )
        self._num_inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._empty.set()

    async def drain(self, grace_s: float) -> int:
        """Close the gate, wait up to `grace_s`, and return how many requests are still inside."""
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), grace_s)
        except TimeoutError:
            return self._num_inside
        return 0
