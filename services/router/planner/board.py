"""Where routers meet: who leads, what each of them knows, and what was decided."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a router gets for its report."""

    #: Whether this router plans for all.
    leads: bool
    #: Grows with every new leader: what an earlier one still does is refused.
    term: int
    #: Reports of all live routers, its own among them.
    reports: Sequence[bytes]
    #: The leader's last decision; empty: none yet.
    decision: bytes = b""
    #: Seconds since the last move; None: none was made.
    moved_ago_s: float | None = None


class Board(Protocol):
    """The meeting place of one model's planners.

    Order: `claim` and `decide` are of the term that `exchange` gave last. All of them raise
    UnavailableError or DeadlineError while the place cannot be reached; nothing has changed then,
    or it will be found by the next exchange.
    """

    async def exchange(self, report: bytes) -> Exchange:
        """Put this router's report up, and take or renew the lead if it is free or its own."""
        ...

    async def claim(self, term: int, *, cooldown_s: float) -> bool:
        """Return whether a leader may make a move now; then none may for `cooldown_s`."""
        ...

    async def decide(self, term: int, decision: bytes) -> bool:
        """Put a leader's decision up; return whether it still leads."""
        ...

    async def resign(self) -> None:
        """Give up the lead, if it has it, so that the next router need not wait."""
        ...


class AloneBoard:
    """The board of the only router."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_s: float | None = None
        self._decision = b""

    async def exchange(self, report: bytes) -> Exchange:
        """See Board."""
        ago_s = None if self._moved_s is None else self._clock() - self._moved_s
        return Exchange(
            leads=True, term=1, reports=(report,), decision=self._decision, moved_ago_s=ago_s
        )

    async def claim(self, term: int, *, cooldown_s: float) -> bool:
        """See Board."""
        now_s = self._clock()
        if self._moved_s is not None and now_s - self._moved_s < cooldown_s:
            return False
        self._moved_s = now_s
        return True

    async def decide(self, term: int, decision: bytes) -> bool:
        """See Board."""
        self._decision = decision
        return True

    async def resign(self) -> None:
        """See Board."""
