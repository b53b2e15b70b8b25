"""Error of the TTFT estimates: the margin by which a TTFT bound must exceed an estimate."""

from __future__ import annotations

import math

#: Share of requests that should get their first token within estimate times margin.
TARGET = 0.95
#: Step of the margin. A late request moves it 19 times as far as one in time.
STEP = 0.2
#: Bound of the margin. A worker that stalls once makes all of its requests late. That must not
#: refuse requests for long: only admitted requests can show that the worker has recovered.
LOWEST, HIGHEST = 0.5, 2.0
#: Estimates below this share of their bound are ignored: they consist mostly of constant costs. The
#: queue dominates estimates near the bound.
TELLING_SHARE = 0.2


class TtftMargin:
    """A quantile of (actual / estimated), by stochastic approximation: no samples are kept.

    Robbins and Monro, "A Stochastic Approximation Method" (1951), on a logarithmic scale.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def learn(self, *, estimated_ms: float, actual_ms: float, bound_ms: float) -> None:
        """Learn from a request's first token.

        `bound_ms`: time left until the bound when it was routed.
        """
        if estimated_ms <= 0 or estimated_ms * self.factor < TELLING_SHARE * bound_ms:
            return
        late = actual_ms > estimated_ms * self.factor
        factor = self.factor * math.exp(STEP * (TARGET if late else TARGET - 1))
        self.factor = min(HIGHEST, max(LOWEST, factor))
