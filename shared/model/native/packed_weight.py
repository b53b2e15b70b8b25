"""A packed weight, and the thread that makes weights of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from torch import Tensor


class PackedWeight:
    """A `Product` that only the native decoder computes."""

    def __init__(self, made: Future[int]) -> None:
        self._made = made

    @property
    def matrix(self) -> int:
        """The library's handle, once the weight is packed."""
        return self._made.result()

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`. Always raises InternalError."""
        raise InternalError("a packed weight is computed by the native decoder")


class PackingThread:
    """Packs a weight while the next one is read."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pack")
        self._last: Future[int] | None = None

    def start(self, pack: Callable[[], int]) -> PackedWeight:
        """Pack a weight, once the one before is packed: memory has two at most."""
        self.wait()
        self._last = self._thread.submit(pack)
        return PackedWeight(self._last)

    def wait(self) -> None:
        """Wait for the last weight. Raises what its packing raised."""
        if self._last is not None:
            self._last.result()

    def end(self) -> None:
        """Wait, and end the thread."""
        self.wait()
        self._thread.shutdown()
