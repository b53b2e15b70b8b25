"""Engines with grammars, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.events import Failed, NewTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.llm import LLM


def finish(llm: LLM, *request_ids: str) -> dict[str, Sequence[int]]:
    """Step until all have ended; their tokens."""
    tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
    open_ids = set(request_ids)
    while open_ids:
        for event in llm.engine.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, NewTokens):
                tokens[event.request_id] += event.token_ids
                if event.finish_reason is not None:
                    open_ids.discard(event.request_id)
    return dict(tokens)
