"""When an answer may go on on another worker, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import (
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

#: Losses of one answer in a row without a new token in between. Whatever takes a worker down with
#: it must not be shown to all of them.
MAX_FRUITLESS = 3
#: The same where the worker lives and says that it cannot: that may well be the request's fault.
MAX_FRUITLESS_ERRORS = 1
#: Losses of one answer in all.
MAX_LOSSES = 16
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0


@dataclass(slots=True)
class Losses:
    """The attempts at one answer that failed."""

    num: int = 0
    #: Since the last new token.
    num_fruitless: int = 0
    workers: set[WorkerId] = field(default_factory=set)
    endpoint: Endpoint | None = None
    error: BatonError | None = None

    @property
    def was_moved_out(self) -> bool:
        """Whether the last worker wrote the answer until it was asked to end, and still has it."""
        return isinstance(self.error, DrainingError) and not self.num_fruitless

    def add(self, endpoint: Endpoint, error: BatonError, *, fruitful: bool) -> None:
        """One more failed there; `fruitful` if it gave tokens before."""
        self.num += 1
        if fruitful:
            # Who failed long ago may be well again, and then it is ready.
            self.num_fruitless = 0
            self.workers.clear()
        else:
            self.num_fruitless += 1
        self.workers.add(endpoint.record.worker)
        self.endpoint, self.error = endpoint, error


class RetryPolicy:
    """Decides about further attempts, for all requests of a router.

    The first one of an answer is free: a worker that dies takes as many answers with it as it had,
    and each is work that was let in before. What is lost twice draws from the budget, and so does
    whatever a full worker refused: nothing was lost, and the others may be as full.
    """

    def __init__(
        self, budget: RetryBudget | None = None, *, rng: random.Random | None = None
    ) -> None:
        self.budget = budget or RetryBudget()
        self._rng = rng or random.Random()

    def delay_s(self, losses: Losses, *, remaining_s: float) -> float | None:
        """How long to wait before the next attempt; None: there is none.

        The wait doubles with every loss and is spread at random over its upper half.
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
    """Whether another worker could serve what this one could not.

    What is wrong with the request, or with its time, is so everywhere.
    """
    return isinstance(error, UnavailableError | OverloadedError | InternalError)


def reason_of(error: BatonError) -> str:
    """Why an answer goes on elsewhere; the label of a metric."""
    match error:
        case DrainingError():
            return "draining"
        case WorkerSilentError():
            return "silent"
        case OverloadedError():
            return "overloaded"
        case InternalError():
            return "error"
        case _:
            return "lost"
