"""How far estimates of the time to first token are off: what a bound has to leave for that."""

from __future__ import annotations

import math

#: The share of requests that should get their first token within estimate times margin.
TARGET = 0.95
#: How fast the margin moves. A request that was late moves it 19 times as far as one in time.
STEP = 0.2
#: A worker that stood still for a moment makes all that were there late, once: that must not keep
#: requests out for long, who could show that it has become better.
LOWEST, HIGHEST = 0.5, 2.0
#: Estimates below this share of their bound were never in danger, and say nothing about those
#: that are: they are mostly constant costs, and not the queue.
TELLING_SHARE = 0.2


class TtftMargin:
    """A quantile of (actual / estimated), by stochastic approximation: no samples are kept.

    Robbins and Monro, "A Stochastic Approximation Method" (1951), on a logarithmic scale.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def learn(self, *, estimated_ms: float, actual_ms: float, bound_ms: float) -> None:
        """A request that had so much time left when it was routed got its first token."""
        if estimated_ms <= 0 or estimated_ms * self.factor < TELLING_SHARE * bound_ms:
            return
        late = actual_ms > estimated_ms * self.factor
        factor = self.factor * math.exp(STEP * (TARGET if late else TARGET - 1))
        self.factor = min(HIGHEST, max(LOWEST, factor))
