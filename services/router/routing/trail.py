"""What a decision leaves behind for whoever asks afterwards why a request went where it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.routing.base import Policy, RoutingRequest
    from services.router.routing.chooser import Decision


@dataclass(slots=True, eq=False)
class Trail:
    """Belongs to one request. Noting costs nothing: what was looked at is there anyway."""

    policy: Policy | None = None
    request: RoutingRequest | None = None
    #: The last one; a request whose worker was lost is routed again.
    decision: Decision | None = None
    num_decisions: int = 0

    def note(self, policy: Policy, request: RoutingRequest, decision: Decision) -> None:
        """A decision was made, for better or worse."""
        self.policy, self.request, self.decision = policy, request, decision
        self.num_decisions += 1
