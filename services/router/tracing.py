"""The router's part of a request's trace, with attributes of the GenAI semantic conventions."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from shared.errors import BatonError
from shared.telemetry.trace_context import INCOMING, Incoming

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.generation import (
        AnswerPiece,
        GenerationParams,
        GenerationRequest,
        Generator,
        Timings,
        Usage,
    )
    from shared.telemetry.tracing import Span, Tracer, Value


class RequestTrace:
    """One request's span; passed to whoever works on the request."""

    def __init__(self, span: Span, *, began_s: float) -> None:
        """`began_s` is the request's arrival."""
        self._span = span
        self._prepared_s = time.monotonic()
        self._routed = False
        self._finish_reasons: list[str] = []
        self._first_token_s: float | None = None
        span.stage("router.prepare", began_s, self._prepared_s)

    def call(self, worker: str, *, request_id: str, queue_ms: float) -> Span:
        """A decode worker is about to be asked; the caller ends the span.

        What came before the first one was the router's own: `queue_ms` of it in the queue.
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
        """A piece is about to leave the router."""
        if self._first_token_s is None and piece.token_ids:
            self._first_token_s = time.monotonic()
            self._span.event("first_token", self._first_token_s)
        if piece.finish_reason is not None:
            self._finish_reasons.append(piece.finish_reason.value)
        if piece.usage is not None and piece.timings is not None:
            self._span.set(_cost(piece.usage, piece.timings))

    def end(self) -> None:
        """No more pieces come."""
        if self._finish_reasons:
            self._span.set({"gen_ai.response.finish_reasons": self._finish_reasons})
        self._span.end()


class TracedGenerator:
    """Stands in front of any Generator, and gives every request a span."""

    def __init__(self, generator: Generator, tracer: Tracer, *, model: str) -> None:
        self._generator = generator
        self._tracer = tracer
        self._model = model

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        incoming = INCOMING.get() or Incoming()
        began_s = request.arrival_s or time.monotonic()
        span = self._tracer.start(
            f"{incoming.operation} {self._model}",
            headers=incoming.headers,
            began_s=began_s,
            attributes=_asked(request, incoming.operation, self._model),
        )
        # Not a context variable of its own: pieces may be asked for in other tasks than the first.
        incoming.trace_id = span.trace_id
        trace = RequestTrace(span, began_s=began_s)
        inner = self._generator.generate(replace(request, trace=trace))
        try:
            async with aclosing(cast("AsyncGenerator[AnswerPiece]", inner)) as pieces:
                async for piece in pieces:
                    trace.note(piece)
                    yield piece
        except BatonError as error:
            span.fail(error)
            raise
        finally:
            trace.end()


def _asked(request: GenerationRequest, operation: str, model: str) -> dict[str, Value]:
    params = request.params
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": request.request_id,
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "gen_ai.request.choice.count": params.n,
        "baton.tokenize_ms": request.tokenize_ms,
    }
    return attributes | _sampling(params)


def _sampling(params: GenerationParams) -> dict[str, Value]:
    """What the client has set itself."""
    given: dict[str, Value | None] = {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.stop_sequences": list(params.stop) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


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
