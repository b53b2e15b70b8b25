"""Filter, score, pick: one decode worker and an ordered list of prefill workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.base import Route
from services.router.routing.filters import FitsContext, NotExcluded, SharesBlocksWith, Usable
from services.router.routing.picker import LeastCost
from services.router.routing.scorers import HeldTokens, RunningRequests, WaitingPrompts
from shared.errors import NoWorkerError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.endpoint import Endpoint
    from services.router.routing.base import Filter, Picker, RoutingRequest, Scorer

#: How many prefill workers a decode worker may try.
MAX_PREFILL_CANDIDATES = 3


class Scheduler:
    """Chooses by least load. Other policies are other filters, scorers and pickers."""

    def __init__(
        self,
        endpoints: Callable[[Role], Sequence[Endpoint]],
        *,
        filters: Sequence[Filter] = (Usable(), NotExcluded(), FitsContext()),
        decode_scorers: Sequence[Scorer] = (WaitingPrompts(), RunningRequests(), HeldTokens()),
        prefill_scorers: Sequence[Scorer] = (WaitingPrompts(),),
        picker: Picker | None = None,
        max_prefill_candidates: int = MAX_PREFILL_CANDIDATES,
    ) -> None:
        self._endpoints = endpoints
        self._filters = tuple(filters)
        self._decode_scorers = tuple(decode_scorers)
        self._prefill_scorers = tuple(prefill_scorers)
        self._picker: Picker = picker or LeastCost()
        self._max_prefill_candidates = max_prefill_candidates

    def route(self, request: RoutingRequest) -> Route:
        """Where to send a request. The caller books it.

        Raises:
            NoWorkerError: no decode worker can take it now.
        """
        known = self._endpoints(Role.DECODE)
        decode = self._ordered(request, known, self._filters, self._decode_scorers)
        if not decode:
            raise NoWorkerError(_why_nobody(request, known))
        filters = (*self._filters, SharesBlocksWith(decode[0]))
        prefill = self._ordered(
            request, self._endpoints(Role.PREFILL), filters, self._prefill_scorers
        )
        return Route(decode[0], tuple(prefill[: self._max_prefill_candidates]))

    def _ordered(
        self,
        request: RoutingRequest,
        endpoints: Sequence[Endpoint],
        filters: Sequence[Filter],
        scorers: Sequence[Scorer],
    ) -> list[Endpoint]:
        costs = [
            (sum(scorer.cost_ms(request, endpoint) for scorer in scorers), endpoint)
            for endpoint in endpoints
            if all(rule.keeps(request, endpoint) for rule in filters)
        ]
        return self._picker.order(costs)


def _why_nobody(request: RoutingRequest, known: Sequence[Endpoint]) -> str:
    if not known:
        return "no decode worker is registered"
    states = []
    for endpoint in known:
        if endpoint.draining:
            state = "draining"
        elif not endpoint.ready:
            state = "not ready"
        elif endpoint.record.worker in request.excluded:
            state = "failed before"
        else:
            state = "too small"
        states.append(f"{endpoint.name} is {state}")
    return f"no decode worker can take the request: {', '.join(states)}"
