"""The router's part of a request's trace, with attributes of the GenAI semantic conventions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.router.request.trace import RequestTrace
from shared.errors import BatonError
from shared.telemetry.trace_context import INCOMING, Incoming

if TYPE_CHECKING:
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.watch.observer import RequestEnd, RequestWatch
    from shared.generation.params import GenerationParams
    from shared.telemetry.tracing import Tracer, Value


class RequestTracer:
    """The RequestObserver that gives every request a span."""

    def __init__(self, tracer: Tracer, *, model: str) -> None:
        self._tracer = tracer
        self._model = model

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver. The trace is passed along with the request."""
        incoming = INCOMING.get() or Incoming()
        span = self._tracer.start(
            f"{incoming.operation} {self._model}",
            headers=incoming.headers,
            began_s=began_s,
            attributes=_asked(request, incoming.operation, self._model),
        )
        # No context variable: the task that asks for pieces may change after the first one.
        incoming.trace_id = span.trace_id
        trace = RequestTrace(span, began_s=began_s)
        return replace(request, trace=trace), _Traced(trace)


class _Traced:
    """See RequestWatch."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        self._trace.note(piece)

    def ended(self, end: RequestEnd) -> None:
        self._trace.end(end.error if isinstance(end.error, BatonError) else None)


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
    """Return the sampling parameters that the client has set."""
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
