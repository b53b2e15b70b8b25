"""Answers that another router began: the part that the client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.sampling_params import SamplingParams

PARAM = "resume_from"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSoFar:
    """The beginning of one answer, which the client has."""

    index: int
    token_ids: tuple[int, ...] = ()
    #: Whether the answer is complete.
    finished: bool = False
    #: Identity of the weights that wrote it; empty: unknown.
    identity: str = ""


def resumed_identity(answers: Sequence[AnswerSoFar]) -> str:
    """Return the identity of the weights that must resume these answers; empty: unknown.

    Raises:
        InvalidRequestError: the answers were written with different weights.
    """
    identities = {answer.identity for answer in answers if answer.identity}
    if len(identities) > 1:
        raise _invalid("the answers were written with different weights")
    return identities.pop() if identities else ""


def check_resumed(
    answers: Sequence[AnswerSoFar],
    sampling: SamplingParams,
    *,
    n: int,
    num_prompt_tokens: int,
    vocab_size: int,
    max_model_len: int,
) -> None:
    """Check the beginnings against the request.

    Raises:
        InvalidRequestError: they cannot be beginnings of the request's answers.
    """
    indices = {answer.index for answer in answers}
    if len(indices) < len(answers) or any(not 0 <= index < n for index in indices):
        raise _invalid(f"it must name answers from 0 to {n - 1}, each once")
    if sum(answer.finished for answer in answers) == n:
        raise _invalid("all answers have ended")
    for answer in answers:
        num_tokens = len(answer.token_ids)
        where = f"answer {answer.index}"
        if answer.token_ids and max(answer.token_ids) >= vocab_size:
            raise _invalid(f"{where} has tokens that are not in the vocabulary of {vocab_size}")
        if num_tokens > sampling.max_tokens:
            raise _invalid(f"{where} has {num_tokens} tokens; max_tokens is {sampling.max_tokens}")
        room = min(sampling.max_tokens, max_model_len - num_prompt_tokens)
        if not answer.finished and num_tokens >= room:
            raise _invalid(f"{where} has {num_tokens} tokens and room for no more")


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM}: {message}", param=PARAM)
