"""Whether the other processes of a router can serve: a connection may reach any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.processes.wire import Told

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.processes.link import Link


class SharedReadiness:
    """See Others. What a process has not said yet does not count: it does not listen yet."""

    def __init__(self, link: Link) -> None:
        """Tell the others over this link."""
        self._link = link
        self._unready: set[int] = set()
        self._said: bool | None = None
        self._on_change: Callable[[], None] = lambda: None

    @property
    def are_ready(self) -> bool:
        """See Others."""
        return not self._unready

    def on_change(self, call: Callable[[], None]) -> None:
        """See Others."""
        self._on_change = call

    def say(self, *, ready: bool) -> None:
        """See Others."""
        self._said = ready
        self._link.tell(Told.SERVES, ready)

    def say_again(self) -> None:
        """Tell a newcomer what was said last."""
        if self._said is not None:
            self._link.tell(Told.SERVES, self._said)

    def take(self, process: int, ready: bool) -> None:
        """Take what another process says of itself."""
        if ready:
            self._unready.discard(process)
        else:
            self._unready.add(process)
        self._on_change()

    def drop(self, process: int) -> None:
        """Forget a process that has ended: no connection reaches it."""
        self._unready.discard(process)
        self._on_change()
