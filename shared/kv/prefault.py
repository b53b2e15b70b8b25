"""Allocation of pages before their use, so that no step waits for it."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import TYPE_CHECKING

import structlog

from shared.kv.huge_map import HUGE_BYTES, collapse, populate

if TYPE_CHECKING:
    from shared.kv.huge_map import Bytes

log = structlog.get_logger(__name__)

#: Prepared memory beyond the part in use: about what half a second of prefill fills.
AHEAD_BYTES = 256 << 20


class Prefault:
    """Prepares the memory behind a mark as the mark moves up, in huge pages where there are some.

    Preparing all of a large pool at once would take seconds, and memory that may never be used. A
    kernel without this call allocates pages on first use, which is slower.
    """

    def __init__(self, memory: mmap.mmap | Bytes) -> None:
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        self._num_bytes = len(memory)
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
                end = min(self._num_ready + HUGE_BYTES, self._wanted)
            self._populate(end)

    def _populate(self, end: int) -> None:
        """Prepare up to `end` and what is left of its huge page, one after the other."""
        while self._num_ready < end:
            start = self._num_ready
            self._num_ready = min(start + HUGE_BYTES, self._num_bytes)
            try:
                self._prepare(self._address + start, self._num_ready - start)
            except OSError as error:
                log.debug("not_prefaulted", error=str(error))
                self._num_ready = self._num_bytes

    def _prepare(self, address: int, num_bytes: int) -> None:
        if num_bytes == HUGE_BYTES:
            populate(address, mmap.PAGESIZE)  # without any memory there is nothing to collapse
            collapse(address, num_bytes)
        populate(address, num_bytes)
