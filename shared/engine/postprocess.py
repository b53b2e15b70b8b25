"""What a computed step means for its sequences: progress, tokens, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.events import Computed, Failed, FinishReason, NewTokens
from shared.engine.stop import finish_reason_for
from shared.errors import InternalError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.events import EngineEvent, PositionLogprobs
    from shared.engine.model_runner import StepResult
    from shared.engine.sampler.sampler import Sampled
    from shared.engine.scheduler import Scheduler, SchedulerOutput
    from shared.engine.sequence import Sequence


class Postprocessor:
    """Applies the results of a step to the sequences and tells the caller about them."""

    def __init__(self, scheduler: Scheduler, *, max_model_len: int) -> None:
        self._scheduler = scheduler
        self._max_model_len = max_model_len

    def apply(self, output: SchedulerOutput, result: StepResult) -> Iterator[EngineEvent]:
        """Events of one step, in the order of the batch."""
        for seq, num_new_tokens in output.num_new_tokens.items():
            sampled = result.sampled.get(seq)
            if sampled is not None and sampled.token_id is None:
                # Its KV is suspect too: it never becomes visible.
                self._scheduler.finish(seq)
                yield Failed(request_id=seq.request_id, error=_nothing_to_sample(seq))
                continue
            self._scheduler.advance(seq, num_new_tokens)
            if seq.request.hold_blocks:
                yield Computed(
                    request_id=seq.request_id, num_computed_tokens=seq.num_computed_tokens
                )
            if seq.prompt_logprobs is not None:
                seq.prompt_logprobs += result.prompt_logprobs.get(seq, ())
            if sampled is not None and sampled.token_id is not None:
                yield self._take_token(seq, sampled, sampled.token_id)

    def finish_reason(self, seq: Sequence) -> FinishReason | None:
        """Whether the sequence's last token ends it."""
        reason = finish_reason_for(
            seq.token_ids[-1],
            seq.request.sampling,
            num_output_tokens=seq.num_output_tokens,
            num_tokens=seq.num_tokens,
            max_model_len=self._max_model_len,
        )
        if reason is None and seq.request.hold_blocks:
            return FinishReason.LENGTH
        return reason

    def ending(
        self,
        seq: Sequence,
        reason: FinishReason | None,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[PositionLogprobs, ...] = (),
        prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None,
    ) -> NewTokens:
        """Give tokens out, and finish the sequence if there is a reason."""
        stop_token_id = seq.token_ids[-1] if reason is FinishReason.STOP else None
        if reason is not None:
            self._scheduler.finish(seq)
        return NewTokens(
            request_id=seq.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            stop_token_id=stop_token_id,
        )

    def _take_token(self, seq: Sequence, sampled: Sampled, token_id: int) -> NewTokens:
        seq.token_ids.append(token_id)
        prompt_logprobs, seq.prompt_logprobs = seq.prompt_logprobs, None
        return self.ending(
            seq,
            self.finish_reason(seq),
            token_ids=(token_id,),
            logprobs=() if sampled.logprobs is None else (sampled.logprobs,),
            prompt_logprobs=None if prompt_logprobs is None else tuple(prompt_logprobs),
        )


def _nothing_to_sample(seq: Sequence) -> Exception:
    if seq.sampling_state.changes_logits:
        return InvalidRequestError(
            f"request {seq.request_id}: the constraints on its tokens leave none to choose",
            param="allowed_token_ids",
        )
    return InternalError(f"request {seq.request_id}: the model gave no finite logits")
