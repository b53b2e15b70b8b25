"""`thinking_token_budget`: which tokens begin and end the reasoning that it bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import UnsupportedError
from shared.request.grammar.spec import Thinking
from shared.request.thinking_budget import PARAM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.parsers.base import ReasoningFormat
    from shared.generation.params import GenerationParams
    from shared.text.tokenizer import Tokenizer


#: The marks of the reasoning are among so many last tokens of a prompt.
_NUM_LAST = 32


def end_of(prompt_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the last part of a prompt's text, for `bound_thinking`."""
    return tokenizer.decode(prompt_ids[-_NUM_LAST:], skip_special_tokens=False)


def bound_thinking(
    params: GenerationParams, reasoning: ReasoningFormat | None, prompt: str, tokenizer: Tokenizer
) -> GenerationParams:
    """Return the parameters with the marks of the reasoning, if it has a budget.

    `prompt`: its text, which may have begun the reasoning, or ended it.

    Raises:
        UnsupportedError: the router does not know how the model marks its reasoning, or a mark is
            more than one token.
    """
    if params.thinking_token_budget is None:
        return params
    if reasoning is None:
        message = (
            f"{PARAM}: this router knows no marks of the model's reasoning: --reasoning-parser"
        )
        raise UnsupportedError(message, param=PARAM)
    marks = reasoning.marks(prompt)
    if marks is None:
        return replace(params, thinking_token_budget=None)
    begin, end = tokenizer.token_id(marks.begin), tokenizer.token_id(marks.end)
    if begin is None or end is None:
        message = f"{PARAM}: {marks.begin} and {marks.end} are not one token each for this model"
        raise UnsupportedError(message, param=PARAM)
    thinking = Thinking(begin_token_id=begin, end_token_id=end, is_open=marks.is_open)
    return replace(params, thinking=thinking)
