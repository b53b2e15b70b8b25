"""Allocation of pages before their use, so that no step waits for it."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import structlog

from shared.kv.huge_map import HUGE_BYTES

if TYPE_CHECKING:
    from shared.kv.huge_map import HugeMap

log = structlog.get_logger(__name__)

#: Prepared memory beyond the part in use: about what half a second of prefill fills.
AHEAD_BYTES = 64 << 20
#: A thread that starts has at least this much to prepare.
_LEAST_BYTES = 8 << 20


class Prefault:
    """Prepares the memory behind a mark as the mark moves up, in huge pages where there are some.

    Preparing all of a large pool at once would take seconds, and memory that may never be used. A
    kernel without these calls allocates pages on first use, which is slower, or only small ones.
    """

    def __init__(self, mapping: HugeMap) -> None:
        self._mapping = mapping
        self._num_bytes = mapping.num_bytes
        self._num_ready = 0
        self._wanted = min(AHEAD_BYTES, self._num_bytes)
        self._lock = threading.Lock()
        #: It ends when there is nothing to do, so that it keeps no memory that was dropped.
        self._thread: threading.Thread | None = None
        self._closed = False
        #: Error numbers of pages that stayed small.
        self._refusals: set[int] = set()
        while self._num_ready < self._wanted:
            self._prepare_page()

    def reach(self, num_bytes: int) -> None:
        """Record that the first `num_bytes` are in use, or soon will be. Returns at once."""
        if min(num_bytes + AHEAD_BYTES, self._num_bytes) <= self._wanted:
            return
        with self._lock:
            self._wanted = min(num_bytes + AHEAD_BYTES + _LEAST_BYTES, self._num_bytes)
            is_behind = self._num_ready < self._wanted
            if is_behind and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the work: afterwards the memory may be unmapped."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed or self._num_ready >= self._wanted:
                    self._thread = None
                    return
            self._prepare_page()

    def _prepare_page(self) -> None:
        start = self._num_ready
        stop = self._num_ready = min(start + HUGE_BYTES, self._num_bytes)
        try:
            if stop - start == HUGE_BYTES and errno.EINVAL not in self._refusals:
                self._collapse(start)
            self._mapping.populate(start, stop)
        except OSError as error:
            log.debug("not_prefaulted", error=str(error))
            self._num_ready = self._num_bytes

    def _collapse(self, start: int) -> None:
        self._mapping.populate(start, start + 1)  # without any memory there is nothing to collapse
        try:
            self._mapping.collapse(start)
        except OSError as error:
            number = error.errno or errno.EINVAL
            if number not in self._refusals:
                self._refusals.add(number)
                log.debug("small_pages", error=str(error))
