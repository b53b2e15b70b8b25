"""Beam search in the caller's own thread.

A step of a beam is a request for one token that resumes the beam's tokens. Its prefix is in the
cache but for the last, not yet full block, so a step computes at most `block_size` tokens per beam.
The steps of all beams of all prompts are one batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.engine.offline.request_output import CompletionOutput
from shared.request.answer import PositionLogprobs
from shared.request.beam_answer import beam_finish, beam_text
from shared.request.beam_search import BeamSearch, Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.request.beam_search import Beam, BeamOptions
    from shared.request.sampling_params import SamplingParams
    from shared.text.tokenizer import Tokenizer

    #: Function from prompts, resumed tokens and parameters to the next tokens' candidates; one
    #: batch.
    Step = tuple[tuple[int, ...], tuple[int, ...], SamplingParams]
    Compute = Callable[[Sequence[Step]], list[PositionLogprobs]]


class PromptBeams:
    """The search for the answers to one prompt."""

    def __init__(
        self,
        prompt_ids: tuple[int, ...],
        options: BeamOptions,
        sampling: SamplingParams,
        *,
        max_model_len: int,
    ) -> None:
        self.prompt_ids = prompt_ids
        # The engine refuses a prompt that leaves no room.
        room = max(1, max_model_len - len(prompt_ids))
        sampling = replace(
            sampling,
            max_tokens=min(sampling.max_tokens, room),
            min_tokens=min(sampling.min_tokens, room),
        )
        self._num_logprobs = sampling.logprobs
        self.search: BeamSearch[PositionLogprobs] = BeamSearch(options, sampling)

    def outputs(
        self, n: int, tokenizer: Tokenizer | None, *, skip_special_tokens: bool
    ) -> tuple[CompletionOutput, ...]:
        """Return the `n` best answers. Without a tokenizer their texts are empty."""
        return tuple(
            CompletionOutput(
                index=index,
                text=""
                if tokenizer is None
                else beam_text(
                    beam, tokenizer, self.prompt_ids, skip_special_tokens=skip_special_tokens
                ),
                token_ids=beam.token_ids,
                logprobs=self._logprobs(beam),
                finish_reason=beam_finish(beam),
                stop_reason=beam.stop_token_id,
            )
            for index, beam in enumerate(self.search.answers[:n])
        )

    def _logprobs(self, beam: Beam[PositionLogprobs]) -> tuple[PositionLogprobs, ...]:
        if self._num_logprobs is None:
            return ()
        return tuple(
            PositionLogprobs(position.chosen, position.top[: self._num_logprobs])
            for position in beam.details
        )


def run_searches(searches: Sequence[PromptBeams], compute: Compute) -> None:
    """Run all searches to their ends."""
    while open_searches := [each for each in searches if not each.search.is_done]:
        steps = [
            (each.prompt_ids, beam.token_ids, each.search.step_sampling())
            for each in open_searches
            for beam in each.search.running
        ]
        positions = iter(compute(steps))
        for each in open_searches:
            each.search.advance([_candidates(next(positions)) for _ in each.search.running])


def _candidates(position: PositionLogprobs) -> list[Candidate[PositionLogprobs]]:
    return [
        Candidate(token.token_id, token.logprob, PositionLogprobs(token, position.top))
        for token in position.top
    ]
