"""What is told of every request, twice in its life: at its first token and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from services.router.request.generation import GenerationRequest
    from services.router.usage import Timings, Usage
    from services.router.watch.metrics import TokenMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """How a request ended."""

    request: GenerationRequest
    #: Why its last answer ended, the name of an error, or "cancelled".
    outcome: str
    #: It was not served, and that is not the client's fault.
    failed: bool
    latency_s: float
    #: None unless all answers were given.
    usage: Usage | None = None
    timings: Timings | None = None


class RequestObserver(Protocol):
    """Whoever wants to know. What it does must be little, and is never done per token."""

    @property
    def tokens(self) -> TokenMetrics:
        """Where tokens and the gaps between them are counted."""
        ...

    def first_token(self, ttft_s: float) -> None:
        """A request has its first token."""
        ...

    def ended(self, end: RequestEnd) -> None:
        """A request has ended, in whatever way."""
        ...
