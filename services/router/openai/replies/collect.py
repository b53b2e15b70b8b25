"""Whole answers from a stream of pieces, for clients that do not stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.request.answer import num_candidates

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence

    from services.router.openai.replies.responses import Tally
    from services.router.request.generation import AnswerPiece, TokenDetail


@dataclass(slots=True)
class CollectedAnswer:
    """One whole answer."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    details: list[TokenDetail] = field(default_factory=list)
    hidden_states: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    weight_version: str = ""


@dataclass(slots=True)
class Collected:
    """The answers to one prompt."""

    answers: list[CollectedAnswer]
    prompt_details: tuple[TokenDetail | None, ...] | None = None


async def collect(
    parts: AsyncIterable[tuple[int, AnswerPiece]], *, num_prompts: int, n: int, tally: Tally
) -> list[Collected]:
    """Return the whole answers, after reading the stream to its end."""
    prompts = [Collected([CollectedAnswer() for _ in range(n)]) for _ in range(num_prompts)]
    async for place, piece in parts:
        tally.add(piece)
        if piece.prompt_details is not None:
            prompts[place].prompt_details = piece.prompt_details
        answer = prompts[place].answers[piece.index]
        answer.texts.append(piece.text)
        answer.token_ids += piece.token_ids
        answer.details += piece.details
        answer.hidden_states += piece.hidden_states
        if piece.finish_reason is not None:
            answer.finish_reason = piece.finish_reason.value
            answer.stop_reason = stop_reason(piece)
            answer.weight_version = piece.weight_version
    return prompts


def num_details(prompts: Sequence[Collected]) -> int:
    """Return how many log probabilities there are to write."""
    return sum(
        num_candidates(prompt.prompt_details or ())
        + sum(num_candidates(answer.details) for answer in prompt.answers)
        for prompt in prompts
    )


def stop_reason(piece: AnswerPiece) -> str | int | None:
    """Return the stop string or token that ended the answer, as vLLM reports it."""
    return piece.stop_token_id if piece.stop_string is None else piece.stop_string
