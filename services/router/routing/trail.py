"""The record of a routing decision, for explanations after the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.routing.base import Policy, RoutingRequest
    from services.router.routing.chooser import Decision


@dataclass(slots=True, eq=False)
class Trail:
    """One request's routing record. It keeps references only, so noting costs nothing."""

    policy: Policy | None = None
    request: RoutingRequest | None = None
    #: The last decision; a request whose worker was lost is routed again.
    decision: Decision | None = None
    num_decisions: int = 0

    def note(self, policy: Policy, request: RoutingRequest, decision: Decision) -> None:
        """Record a decision, with or without a route."""
        self.policy, self.request, self.decision = policy, request, decision
        self.num_decisions += 1
