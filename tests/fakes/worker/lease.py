"""A lease in a directory that lives on the test's own event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.directory.base import WorkerLoad, WorkerRegistry
    from shared.identity import WorkerId

TIMEOUT_S = 5.0


class LoopLease:
    """Renewed from another thread."""

    def __init__(
        self, registry: WorkerRegistry, worker: WorkerId, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._registry = registry
        self._worker = worker
        self._loop = loop

    def renew(self, load: WorkerLoad) -> None:
        """See Lease."""
        beat = self._registry.heartbeat(self._worker, load)
        # The protocol's coroutine is one, though its type only says that it can be awaited.
        asyncio.run_coroutine_threadsafe(beat, self._loop).result(TIMEOUT_S)  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing was opened."""
