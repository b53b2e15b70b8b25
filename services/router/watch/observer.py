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
    #: It was not served, and that is not the client's fault.
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
        """A piece of an answer is about to leave the router. Called for every piece: be quick."""
        ...

    def ended(self, end: RequestEnd) -> None:
        """The request has ended, in whatever way. Called once, and nothing afterwards."""
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
