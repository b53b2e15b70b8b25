"""The end of a sequence. Stop strings are text and therefore not handled here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from shared.request.sampling_params import SamplingParams


def finish_reason_for(
    token_id: int,
    sampling: SamplingParams,
    *,
    num_output_tokens: int,
    num_tokens: int,
    max_model_len: int,
    final_token_ids: AbstractSet[int] | None = None,
) -> FinishReason | None:
    """Return the reason if the token just sampled, counted in both numbers, is the last one.

    `num_output_tokens` includes resumed tokens; `num_tokens` is the prompt and the output.
    `final_token_ids` saves repeated calls of `sampling` for them.
    """
    if final_token_ids is None:
        final_token_ids = sampling.final_token_ids
    # `min_tokens` does not delay an end that is a grammar's only choice.
    is_early = num_output_tokens < sampling.min_tokens and sampling.grammar is None
    if token_id in final_token_ids and not is_early:
        return FinishReason.STOP
    if is_last_token(
        sampling,
        num_output_tokens=num_output_tokens,
        num_tokens=num_tokens,
        max_model_len=max_model_len,
    ):
        return FinishReason.LENGTH
    return None


def is_last_token(
    sampling: SamplingParams, *, num_output_tokens: int, num_tokens: int, max_model_len: int
) -> bool:
    """Return whether no token may follow the last one, whatever it is."""
    return num_output_tokens >= sampling.max_tokens or num_tokens >= max_model_len
