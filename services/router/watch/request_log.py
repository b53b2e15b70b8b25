"""One line per request, for those who want it."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import structlog

from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator

log = structlog.get_logger(__name__)


class LoggedGenerator:
    """Stands in front of any Generator. Never logs what was asked or answered."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        began_s = request.arrival_s or time.monotonic()
        told: dict[str, Any] = {"outcome": "cancelled"}
        answers = cast("AsyncGenerator[AnswerPiece]", self._generator.generate(request))
        try:
            async with aclosing(answers) as pieces:
                async for piece in pieces:
                    if piece.usage is not None:
                        told = _ended(piece)
                    yield piece
        except BatonError as error:
            told = {"outcome": type(error).__name__, "error": str(error)}
            raise
        finally:
            log.info(
                "request_ended",
                tenant=request.tenant.name,
                model=request.model,
                num_prompt_tokens=len(request.prompt_token_ids),
                duration_ms=round((time.monotonic() - began_s) * 1e3, 1),
                **told,
            )


def _ended(piece: AnswerPiece) -> dict[str, Any]:
    usage, timings = piece.usage, piece.timings
    told: dict[str, Any] = {"outcome": str(piece.finish_reason)}
    if usage is not None:
        told |= {"num_output_tokens": usage.completion_tokens, "cached_tokens": usage.cached_tokens}
    if timings is not None:
        told |= {
            "first_token_ms": round(timings.first_token_ms, 1),
            "prefill_worker": timings.prefill_worker,
            "decode_worker": timings.decode_worker,
        }
    return told
