"""Commands from an event loop to the engine's thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Command:
    """An action for the engine's thread, and the future on the loop that gets its result."""

    def __init__(
        self,
        action: Callable[[], Any],
        future: asyncio.Future[Any] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._action = action
        self._future = future
        self._then = then

    def run(self) -> Callable[[], None]:
        """Run the action in the engine's thread; return a call that completes the future on the
        loop.
        """
        try:
            return partial(self._succeed, self._action())
        except Exception as error:  # noqa: BLE001 it belongs to the caller, not to this thread
            return partial(self.fail, error)

    def fail(self, error: Exception) -> None:
        """Fail the caller's future. Call on the event loop."""
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    def _succeed(self, result: Any) -> None:
        if self._then is not None:
            self._then()
        if self._future is not None and not self._future.done():
            self._future.set_result(result)


def resolve(future: asyncio.Future[None]) -> None:
    """Complete `future` unless it is done. Call on the event loop."""
    if not future.done():
        future.set_result(None)


def call_all(messages: list[Callable[[], None]]) -> None:
    """Call all of `messages` in order. Call on the event loop."""
    for message in messages:
        message()
