"""A request's span, with attributes of the GenAI semantic conventions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.request.generation import AnswerPiece
    from services.router.usage import Timings, Usage
    from shared.telemetry.tracing import Span, Value


class RequestTrace:
    """The span of one request, passed along with the request."""

    def __init__(self, span: Span, *, began_s: float) -> None:
        """Record `span`. `began_s` is the request's arrival."""
        self._span = span
        self._prepared_s = time.monotonic()
        self._routed = False
        self._finish_reasons: list[str] = []
        self._first_token_s: float | None = None
        span.stage("router.prepare", began_s, self._prepared_s)

    def call(self, worker: str, *, request_id: str, queue_ms: float) -> Span:
        """Start the span of a call to a decode worker; the caller ends it.

        The first call also adds the router's stages before it: the queue (`queue_ms`) and routing.
        """
        now_s = time.monotonic()
        if not self._routed:
            self._routed = True
            admitted_s = min(now_s, self._prepared_s + queue_ms / 1e3)
            self._span.stage("router.queue", self._prepared_s, admitted_s)
            self._span.stage("router.route", admitted_s, now_s)
        attributes = {"baton.worker": worker, "baton.request_id": request_id}
        return self._span.call("router.call", attributes)

    def note(self, piece: AnswerPiece) -> None:
        """Record a piece that is about to leave the router."""
        if self._first_token_s is None and piece.token_ids:
            self._first_token_s = time.monotonic()
            self._span.event("first_token", self._first_token_s)
        if piece.finish_reason is not None:
            self._finish_reasons.append(piece.finish_reason.value)
        if piece.usage is not None and piece.timings is not None:
            self._span.set(_cost(piece.usage, piece.timings))

    def end(self, error: Exception | None = None) -> None:
        """End the span; `error`: what ended the request, if it failed."""
        if error is not None:
            self._span.fail(error)
        if self._finish_reasons:
            self._span.set({"gen_ai.response.finish_reasons": self._finish_reasons})
        self._span.end()


def _cost(usage: Usage, timings: Timings) -> dict[str, Value]:
    return {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "baton.first_token_ms": timings.first_token_ms,
        "baton.prefill_worker": timings.prefill_worker,
        "baton.decode_worker": timings.decode_worker,
        "baton.connector": timings.connector,
        "baton.transfer_bytes": timings.transfer_bytes,
        "baton.transfer_exposed_ms": timings.transfer_exposed_ms,
        "baton.num_replays": usage.num_replays,
    }
