"""One log line per request, if operators turn it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.watch.observer import RequestEnd, RequestWatch

log = structlog.get_logger(__name__)


class RequestLog:
    """The RequestObserver that logs ends. Never logs prompts or answers."""

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver."""
        return request, self

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        """See RequestWatch."""

    def ended(self, end: RequestEnd) -> None:
        """See RequestWatch."""
        request = end.request
        log.info(
            "request_ended",
            tenant=request.tenant.name,
            model=request.model,
            num_prompt_tokens=len(request.prompt_token_ids),
            duration_ms=round(end.latency_s * 1e3, 1),
            **_told(end),
        )


def _told(end: RequestEnd) -> dict[str, Any]:
    told: dict[str, Any] = {"outcome": end.outcome}
    if end.error is not None:
        told["error"] = str(end.error)
    if end.usage is not None:
        told["num_output_tokens"] = end.usage.completion_tokens
        told["cached_tokens"] = end.usage.cached_tokens
    if end.timings is not None:
        told["first_token_ms"] = round(end.timings.first_token_ms, 1)
        told["prefill_worker"] = end.timings.prefill_worker
        told["decode_worker"] = end.timings.decode_worker
    return told
