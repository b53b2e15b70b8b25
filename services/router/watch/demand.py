"""Tells the planner of requests as they come and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.planner.view import PoolView
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.watch.observer import RequestEnd, RequestWatch


class DemandObserver:
    """A RequestObserver of one model."""

    def __init__(self, view: PoolView) -> None:
        self._view = view

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver: a request counts when it comes, whatever becomes of it."""
        self._view.arrived(len(request.prompt_token_ids))
        return request, self

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        """See RequestWatch."""

    def ended(self, end: RequestEnd) -> None:
        """See RequestWatch."""
        if end.usage is not None:
            self._view.answered(end.usage)
