"""How long a pause that is part of a change lasts when no router renews it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PauseLease:
    """Tells its owner when no router has renewed a pause in time. Use it on one loop."""

    def __init__(self, on_lapse: Callable[[], None]) -> None:
        """`on_lapse` is called once for each `begin` or `renew` that nothing follows in time."""
        self._on_lapse = on_lapse
        self._lease_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._lease_s > 0

    @property
    def has_lapsed(self) -> bool:
        """Whether it was not renewed in time."""
        return self.runs and self._timer is None

    def begin(self, lease_s: float) -> None:
        """Begin; a pause with 0 s has no lease."""
        self.end()
        self._lease_s = lease_s
        self.renew()

    def renew(self) -> None:
        """Count from now, if it runs."""
        if not self.runs:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._lease_s, self._lapse)

    def end(self) -> None:
        """Tell nothing any more. Safe to repeat."""
        self._lease_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lapse(self) -> None:
        self._timer = None
        self._on_lapse()
