"""The text and finish reason of a beam when its search has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.request.answer import FinishReason
from shared.text.answer_text import AnswerText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.beam_search import Beam
    from shared.text.tokenizer import Tokenizer


def beam_finish(beam: Beam[Any]) -> FinishReason:
    """Return why a beam ended."""
    return FinishReason.LENGTH if beam.stop_token_id is None else FinishReason.STOP


def beam_text(
    beam: Beam[Any],
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    *,
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool = True,
    include_stop_str_in_output: bool = False,
) -> str:
    """Return the text of an answer, as a stream of its tokens would have given it."""
    text = AnswerText(
        tokenizer,
        prompt_ids=prompt_ids,
        include_stop_str_in_output=include_stop_str_in_output,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens,
    )
    return text.feed(beam.token_ids, final=True, stop_token_id=beam.stop_token_id).text
