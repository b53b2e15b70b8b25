"""Groups of ranks in shared memory, with buffers so small that most tensors go in pieces."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shared.ranks.shared_memory import SharedMemoryCollective, collective_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.ranks.base import Collective
    from shared.ranks.group_file import GroupFile

T = TypeVar("T")
BUFFER_BYTES = 2048


class SharedMemoryRanks:
    """Makes a group whose ranks `together` runs at once; they leave when all are done."""

    def __init__(
        self, together: Callable[[Sequence[Callable[[], Any]]], list[Any]], timeout_s: float = 20.0
    ) -> None:
        self._together = together
        self._timeout_s = timeout_s

    def run(self, size: int, body: Callable[[Collective], T]) -> list[T]:
        """See `Ranks`."""
        file = collective_file(size, BUFFER_BYTES)
        with ExitStack() as leaving:
            leaving.callback(file.close)

            def live(rank: int) -> T:
                group = small_buffers(file, rank, size, self._timeout_s)
                leaving.callback(group.close)
                return body(group)

            return self._together([partial(live, rank) for rank in range(size)])


def small_buffers(
    file: GroupFile, rank: int, size: int, timeout_s: float
) -> SharedMemoryCollective:
    """Join the group of a `collective_file` with small buffers."""
    return SharedMemoryCollective(
        file.fd, rank, size, timeout_s=timeout_s, spin_s=0.0, buffer_bytes=BUFFER_BYTES
    )
