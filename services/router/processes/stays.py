"""What processes hold, each thing by a task of the hub that gives it back however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

#: A process, and what it calls the thing.
Key = tuple[int, "Hashable"]


@dataclass(slots=True)
class Stay(Generic[T]):
    """One thing. It is waited for until `begun` is done, and held until `ended` is."""

    begun: asyncio.Future[Any]
    ended: asyncio.Future[T]
    task: asyncio.Task[None] | None = None


class Stays(Generic[T]):
    """All things of a kind. T: what a process says at the end of one."""

    def __init__(self) -> None:
        self._stays: dict[Key, Stay[T]] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def begin(
        self, key: Key, hold: Callable[[Stay[T]], Coroutine[Any, Any, None]]
    ) -> asyncio.Future[Any]:
        """Return what is done when the process has the thing: `hold` sets `begun`.

        `hold` waits for the thing, then for `ended`, and gives it back when that is done or it is
        cancelled. Its errors of Baton become those of the future.
        """
        loop = asyncio.get_running_loop()
        stay: Stay[T] = Stay(loop.create_future(), loop.create_future())
        self._stays[key] = stay
        stay.task = loop.create_task(_run(stay, hold))
        # A task that is cancelled before its first step runs none of its own code.
        stay.task.add_done_callback(lambda _: self._over(key, stay))
        return stay.begun

    def end(self, key: Key, value: T) -> None:
        """Give a thing back, or give up waiting for it. Ignores what is not there."""
        stay = self._stays.get(key)
        if stay is None or stay.task is None:
            return
        if not stay.begun.done():
            stay.task.cancel()
        elif not stay.ended.done():
            stay.ended.set_result(value)

    def drop(self, process: int) -> None:
        """Give everything back that a process has, or waits for."""
        for (owner, _), stay in list(self._stays.items()):
            if owner == process and stay.task is not None:
                stay.task.cancel()

    def _over(self, key: Key, stay: Stay[T]) -> None:
        self._stays.pop(key, None)
        stay.begun.cancel()


async def _run(stay: Stay[T], hold: Callable[[Stay[T]], Coroutine[Any, Any, None]]) -> None:
    try:
        await hold(stay)
    except BatonError as error:
        if not stay.begun.done():
            stay.begun.set_exception(error)
