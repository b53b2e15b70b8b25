"""Allocation of pages before their use, so that no step waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from shared.kv.huge_map import HugeMap

log = structlog.get_logger(__name__)

#: Prepared memory beyond the part in use: about what half a second of prefill fills.
AHEAD_BYTES = 256 << 20
#: Bytes per system call: half a millisecond.
_SLICE_BYTES = 1 << 20


class Prefault:
    """Prepares the memory behind a mark as the mark moves up.

    Preparing all of a large pool at once would take seconds, and memory that may never be used. A
    kernel without this call allocates pages on first use, which is slower.
    """

    def __init__(self, mapping: HugeMap) -> None:
        self._mapping = mapping
        self._num_bytes = mapping.num_bytes
        self._num_ready = 0
        self._wanted = 0
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._populate(min(AHEAD_BYTES, self._num_bytes))

    def reach(self, num_bytes: int) -> None:
        """Record that the first `num_bytes` are in use, or soon will be. Returns at once."""
        wanted = min(num_bytes + AHEAD_BYTES, self._num_bytes)
        if wanted <= max(self._wanted, self._num_ready):
            return
        with self._news:
            self._wanted = wanted
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
                self._thread.start()
            self._news.notify()

    def close(self) -> None:
        """End the work: afterwards the memory may be unmapped."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closed or self._num_ready < self._wanted)
                if self._closed:
                    return
                end = min(self._num_ready + _SLICE_BYTES, self._wanted)
            self._populate(end)

    def _populate(self, end: int) -> None:
        start = self._num_ready
        self._num_ready = end
        try:
            self._mapping.populate(start, end)
        except OSError as error:
            log.debug("not_prefaulted", error=str(error))
            self._num_ready = self._num_bytes
