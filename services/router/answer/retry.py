"""Whether an answer may continue on another worker, and after what delay."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import (
    AdapterNotLoadedError,
    BatonError,
    DrainingError,
    InternalError,
    OverloadedError,
    UnavailableError,
    WorkerSilentError,
)
from shared.rpc.retry_budget import RetryBudget

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId

#: Losses of one answer in a row without a new token in between. A request that makes workers fail
#: must not be sent to all of them.
MAX_FRUITLESS = 3
#: The same if the worker lives and reports an internal error: the request may be the cause.
MAX_FRUITLESS_ERRORS = 1
#: Total losses of one answer.
MAX_LOSSES = 16
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0


@dataclass(slots=True)
class Losses:
    """The failed attempts at one answer."""

    num: int = 0
    #: Losses since the last new token.
    num_fruitless: int = 0
    workers: set[WorkerId] = field(default_factory=set)
    endpoint: Endpoint | None = None
    error: BatonError | None = None

    @property
    def was_moved_out(self) -> bool:
        """Whether the last worker stopped the answer because it drains: it still has the KV."""
        return isinstance(self.error, DrainingError) and not self.num_fruitless

    def add(self, endpoint: Endpoint, error: BatonError, *, fruitful: bool) -> None:
        """Record a failed attempt at `endpoint`; `fruitful`: it yielded tokens before it failed."""
        self.num += 1
        if fruitful:
            # Workers that failed earlier may have recovered: then they are ready.
            self.num_fruitless = 0
            self.workers.clear()
        else:
            self.num_fruitless += 1
        self.workers.add(endpoint.record.worker)
        self.endpoint, self.error = endpoint, error


class RetryPolicy:
    """Decides about further attempts, for all requests of a router.

    The first retry of an answer is free: a lost worker loses all of its answers, and each was
    admitted before. Later retries draw from the budget. So does each retry after a full worker's
    refusal: no work was lost, and the other workers may be full, too.
    """

    def __init__(
        self, budget: RetryBudget | None = None, *, rng: random.Random | None = None
    ) -> None:
        self.budget = budget or RetryBudget()
        self._rng = rng or random.Random()

    def delay_s(self, losses: Losses, *, remaining_s: float) -> float | None:
        """Return the delay [s] before the next attempt; None: no further attempt.

        The delay doubles with every loss and is random within its upper half.
        """
        error = losses.error
        if error is None or not may_succeed_elsewhere(error):
            return None
        limit = MAX_FRUITLESS_ERRORS if isinstance(error, InternalError) else MAX_FRUITLESS
        if losses.num_fruitless > limit or losses.num > MAX_LOSSES:
            return None
        ceiling_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (losses.num - 1))
        delay_s = ceiling_s * self._rng.uniform(0.5, 1.0)
        if delay_s >= remaining_s:
            return None
        is_free = losses.num == 1 and not isinstance(error, OverloadedError)
        return delay_s if is_free or self.budget.spend() else None


def may_succeed_elsewhere(error: BatonError) -> bool:
    """Return whether another worker could serve the request after this error.

    No other worker helps with an invalid request or a passed deadline.
    """
    return isinstance(error, UnavailableError | OverloadedError | InternalError)


def reason_of(error: BatonError) -> str:
    """Return the reason of a replay, as the label of a metric."""
    match error:
        case DrainingError():
            return "draining"
        case WorkerSilentError():
            return "silent"
        case AdapterNotLoadedError():
            return "adapter"
        case OverloadedError():
            return "overloaded"
        case InternalError():
            return "error"
        case _:
            return "lost"
