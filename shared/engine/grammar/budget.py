"""The CPU time that one owner's grammars may take to compile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shared.errors import OverloadedError, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Callable

#: Number of owners whose budget is kept. An owner with a full budget needs no entry.
_MAX_OWNERS = 4096


class CpuBudget:
    """A token bucket of seconds per owner. One caller at a time."""

    def __init__(
        self, *, burst_s: float, share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Give each owner `burst_s` at first and `share` seconds per second."""
        self._burst_s = burst_s
        self._share = share
        self._clock = clock
        #: By owner: seconds left, and the time at which they were counted.
        self._left: dict[bytes, tuple[float, float]] = {}

    def left_s(self, owner: bytes) -> float:
        """Return the seconds that the owner may take now; below zero after a charge beyond the
        budget.
        """
        left_s, at_s = self._left.get(owner, (self._burst_s, 0.0))
        return min(self._burst_s, left_s + (self._clock() - at_s) * self._share)

    def check(self, owner: bytes) -> None:
        """Raise OverloadedError, with the time to retry after, if nothing is left."""
        left_s = self.left_s(owner)
        if left_s > 0:
            return
        retry_after_s = (0.1 * self._burst_s - left_s) / self._share
        message = (
            f"grammars of this tenant have taken all of their {self._burst_s:g} s of processor "
            f"time; {self._share:g} s per second come back"
        )
        raise OverloadedError(
            message, retry_after_s=retry_after_s, reason=RefusalReason.TENANT_GRAMMARS
        )

    def charge(self, owner: bytes, cpu_s: float) -> None:
        """Charge this time to the owner."""
        self._left[owner] = (self.left_s(owner) - cpu_s, self._clock())
        if len(self._left) > _MAX_OWNERS:
            full = [one for one in self._left if self.left_s(one) >= self._burst_s]
            for one in full:
                del self._left[one]
