"""`thinking_token_budget` in a program: where the reasoning that it bounds begins and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import UnsupportedError
from shared.request.grammar.spec import Thinking
from shared.request.thinking_budget import PARAM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.generation.params import GenerationParams
    from shared.text.tokenizer import Tokenizer

#: Those of most models.
_USUAL = ("<think>", "</think>")
#: The marks of the reasoning are among so many last tokens of a prompt.
_NUM_LAST = 32


def bound_thinking(
    params: GenerationParams,
    marks: Sequence[str],
    prompt_ids: Sequence[int],
    tokenizer: Tokenizer,
) -> GenerationParams:
    """Return the parameters with the marks of the reasoning, if it has a budget.

    `marks`: the two texts around it; empty: the usual ones. A prompt that has ended the reasoning
    leaves nothing to bound.

    Raises:
        UnsupportedError: a mark is not one token of the model.
    """
    if params.thinking_token_budget is None:
        return params
    begin, end = marks or _USUAL
    begin_id, end_id = tokenizer.token_id(begin), tokenizer.token_id(end)
    if begin_id is None or end_id is None:
        message = (
            f"{PARAM}: {begin} and {end} are not one token each for this model; others are given "
            "as reasoning_config, with reasoning_start_str and reasoning_end_str"
        )
        raise UnsupportedError(message, param=PARAM)
    text = tokenizer.decode(prompt_ids[-_NUM_LAST:], skip_special_tokens=False).rstrip()
    if text.endswith(end):
        return replace(params, thinking_token_budget=None)
    thinking = Thinking(begin_token_id=begin_id, end_token_id=end_id, is_open=text.endswith(begin))
    return replace(params, thinking=thinking)
