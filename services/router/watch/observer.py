"""Observers of requests: interfaces for metrics, the log, traces, the live page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.usage import Timings, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnd:
    """How a request ended."""

    request: GenerationRequest
    #: Finish reason of its last answer, the name of an error, or "cancelled".
    outcome: str
    #: Whether the request failed for a reason other than the client.
    failed: bool
    latency_s: float
    #: None unless all answers were complete.
    usage: Usage | None = None
    timings: Timings | None = None
    #: The error that ended it.
    error: Exception | None = None


class RequestWatch(Protocol):
    """One observer's view of one request."""

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        """Observe a piece just before it leaves the router.

        Called for every piece: must be fast.
        """
        ...

    def ended(self, end: RequestEnd) -> None:
        """Observe the request's end, of any kind. Called once, as the last call."""
        ...


class RequestObserver(Protocol):
    """Observes every request. Never raises and never waits."""

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """Observe a new request, which arrived at `began_s` of the monotonic clock.

        Returns the request to continue with (which may carry a trace), and its watch.
        """
        ...
