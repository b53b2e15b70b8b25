"""What one engine that does it all would answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.events import PositionLogprobs
    from shared.engine.llm import LLM


def expect(
    oracle: LLM, prompt: Sequence[int], *, stop: tuple[int, ...] = (), **params: object
) -> tuple[int, ...]:
    """The tokens of one answer."""
    sampling = SamplingParams(ignore_eos=True, stop_token_ids=stop, **params)  # type: ignore[arg-type]
    return tuple(oracle.generate([list(prompt)], sampling)[0].outputs[0].token_ids)


def expect_logprobs(
    oracle: LLM, prompt: Sequence[int], *, max_tokens: int, num_top: int
) -> Sequence[PositionLogprobs]:
    """The logprobs of one greedy answer."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, logprobs=num_top, ignore_eos=True
    )
    return oracle.generate([list(prompt)], sampling)[0].outputs[0].logprobs
