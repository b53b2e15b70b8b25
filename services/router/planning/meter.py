"""What clients ask for, counted at the door: also what waits, and what is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from services.router.planning.base import Demand
from services.router.workers.timing.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

#: Requests count in means for this time; rates are of each interval, and smoothed later.
WINDOW_S = 120.0
#: An answer's length before one has ended, with the weight of one request.
OUTPUT_PRIOR = 256.0


class DemandMeter:
    """Counts requests of one model. Everything happens on one event loop."""

    def __init__(
        self,
        *,
        max_ttft_ms: float | None = None,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start now. `max_ttft_ms`: prompts that take longer to compute alone are hopeless."""
        self._clock = clock
        self._max_ttft_ms = max_ttft_ms
        self._taken_s = clock()
        self._num_arrived = 0
        self._arrived = Recent(window_s)
        self._tokens = Recent(window_s)
        self._routed = Recent(window_s)
        self._held = Recent(window_s)
        self._ms = Recent(window_s)
        self._ms_squared = Recent(window_s)
        self._hopeless = Recent(window_s)
        self._ended = Recent(window_s)
        self._output = Recent(window_s)

    def arrived(self, num_tokens: int) -> None:
        """Count a request with a prompt of so many tokens."""
        now_s = self._clock()
        self._num_arrived += 1
        self._arrived.add(1.0, now_s)
        self._tokens.add(num_tokens, now_s)

    def routed(self, num_held: int, prompt_ms: float) -> None:
        """Note what of a prompt was found, and how long the rest should take to compute."""
        now_s = self._clock()
        self._routed.add(1.0, now_s)
        self._held.add(num_held, now_s)
        self._ms.add(prompt_ms, now_s)
        self._ms_squared.add(prompt_ms * prompt_ms, now_s)
        if self._max_ttft_ms is not None and prompt_ms > self._max_ttft_ms:
            self._hopeless.add(1.0, now_s)

    def ended(self, num_output_tokens: int) -> None:
        """Note the length of an answer."""
        now_s = self._clock()
        self._ended.add(1.0, now_s)
        self._output.add(num_output_tokens, now_s)

    def take(self) -> Demand:
        """Return the demand since the last call; means are of recent requests."""
        now_s = self._clock()
        passed_s = max(now_s - self._taken_s, 1e-3)
        rate = self._num_arrived / passed_s
        self._taken_s, self._num_arrived = now_s, 0
        arrived = max(self._arrived.total(now_s), 1e-9)
        routed = max(self._routed.total(now_s), 1e-9)
        mean_ms = self._ms.total(now_s) / routed
        squared = self._ms_squared.total(now_s) / routed
        return Demand(
            requests_per_s=rate,
            prompt_tokens=self._tokens.total(now_s) / arrived,
            held_tokens=self._held.total(now_s) / routed,
            output_tokens=(self._output.total(now_s) + OUTPUT_PRIOR)
            / (self._ended.total(now_s) + 1.0),
            prompt_ms=mean_ms,
            variation=max(0.0, squared / (mean_ms * mean_ms) - 1.0) if mean_ms > 0 else 1.0,
            hopeless=self._hopeless.total(now_s) / routed,
        )
