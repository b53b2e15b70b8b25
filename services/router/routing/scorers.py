"""Scorers: what a choice would cost, from the router's own book.

The factors are guesses of the right order until workers report a measured profile. For workers
of one kind only their ratio matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.endpoint import Endpoint
    from services.router.routing.base import RoutingRequest

MS_PER_WAITING_TOKEN = 0.05
MS_PER_RUNNING_REQUEST = 5.0
MS_PER_HELD_TOKEN = 0.001


class WaitingPrompts:
    """Prompt tokens that were sent there and are not computed yet come before this request."""

    def __init__(self, ms_per_token: float = MS_PER_WAITING_TOKEN) -> None:
        self._ms_per_token = ms_per_token

    def cost_ms(self, request: RoutingRequest, endpoint: Endpoint) -> float:
        """See Scorer."""
        return endpoint.num_waiting_tokens * self._ms_per_token


class RunningRequests:
    """Every sequence in the batch makes each step of all others longer."""

    def __init__(self, ms_per_request: float = MS_PER_RUNNING_REQUEST) -> None:
        self._ms_per_request = ms_per_request

    def cost_ms(self, request: RoutingRequest, endpoint: Endpoint) -> float:
        """See Scorer."""
        return endpoint.num_requests * self._ms_per_request


class HeldTokens:
    """Long sequences cost more attention, and fill the KV pool."""

    def __init__(self, ms_per_token: float = MS_PER_HELD_TOKEN) -> None:
        self._ms_per_token = ms_per_token

    def cost_ms(self, request: RoutingRequest, endpoint: Endpoint) -> float:
        """See Scorer."""
        return endpoint.num_held_tokens * self._ms_per_token
