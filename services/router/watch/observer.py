"""Who is told what becomes of requests: metrics, the log, traces, the live page."""

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
    #: Why its last answer ended, the name of an error, or "cancelled".
    outcome: str
    #: The request was not served, and the client is not the cause.
    failed: bool
    latency_s: float
    #: None unless all answers were given.
    usage: Usage | None = None
    timings: Timings | None = None
    #: What ended it, if it was an error.
    error: Exception | None = None


class RequestWatch(Protocol):
    """One observer's view of one request."""

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        """Observe a piece just before it leaves the router. Called for every piece: be quick."""
        ...

    def ended(self, end: RequestEnd) -> None:
        """Observe the request's end, of any kind. Called once, as the last call."""
        ...


class RequestObserver(Protocol):
    """Sees every request. It never raises, and never waits."""

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """A request has come, at `began_s` of the monotonic clock.

        Returns the request as it is to go on (a trace rides along with it), and its watch.
        """
        ...
