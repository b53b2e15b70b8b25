"""When a sequence ends. Stop strings are text and therefore not known here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.events import FinishReason

if TYPE_CHECKING:
    from shared.engine.sampling_params import SamplingParams


def finish_reason_for(
    token_id: int,
    sampling: SamplingParams,
    *,
    num_output_tokens: int,
    num_tokens: int,
    max_model_len: int,
) -> FinishReason | None:
    """Whether the token just sampled, counted in both numbers, is the last one.

    `num_output_tokens` includes resumed tokens; `num_tokens` is the prompt and the output.
    """
    if num_output_tokens >= sampling.min_tokens and token_id in sampling.final_token_ids:
        return FinishReason.STOP
    if num_output_tokens >= sampling.max_tokens or num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None
