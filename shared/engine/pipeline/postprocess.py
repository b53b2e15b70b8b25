"""The results of a computed step for its sequences: progress, tokens, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.sequence.events import Computed, Failed, NewTokens, PromptStates
from shared.engine.sequence.sequence import Status
from shared.engine.sequence.stop import finish_reason_for, is_last_token
from shared.errors import InternalError, InvalidRequestError
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from torch import Tensor

    from shared.engine.pipeline.launched import LaunchedStep, StepSequences
    from shared.engine.prompt_rows import GatheredRows
    from shared.engine.schedule.scheduler import Scheduler
    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.result import StepResult
    from shared.engine.step.tokens.verification import Verified
    from shared.request.answer import PositionLogprobs


class Postprocessor:
    """Applies the results of a step to the sequences and returns their events."""

    def __init__(self, scheduler: Scheduler, *, max_model_len: int) -> None:
        self._scheduler = scheduler
        self.max_model_len = max_model_len

    def launched(self, step: StepSequences) -> None:
        """Mark the step's tokens as in flight."""
        for seq, num_new_tokens in step.num_new_tokens.items():
            seq.num_in_flight_tokens += num_new_tokens
        for seq in step.sampled:
            seq.num_unknown_tokens += 1
            seq.awaits_end = seq.request.hold_blocks or is_last_token(
                seq.request.sampling,
                num_output_tokens=seq.num_output_tokens + seq.num_unknown_tokens,
                num_tokens=seq.num_tokens + seq.num_unknown_tokens,
                max_model_len=self.max_model_len,
            )

    def landed(self, step: StepSequences) -> list[tuple[int, Sequence]]:
        """Mark the step's tokens as no longer in flight; return the sequences that still run.

        With their indexes in the plan.
        """
        for seq in step.sampled:
            seq.num_unknown_tokens -= 1
            seq.awaits_end &= seq.num_unknown_tokens > 0
        running = []
        for place, (seq, num_new_tokens) in enumerate(step.num_new_tokens.items()):
            seq.num_in_flight_tokens -= num_new_tokens
            if seq.status is Status.RUNNING:
                running.append((place, seq))
            else:
                self._scheduler.settle(seq)
        return running

    def apply(self, step: LaunchedStep, result: StepResult) -> list[EngineEvent]:
        """Return the events of one step, in the order of the batch.

        Tokens of sequences that have ended since the launch are dropped.
        """
        events: list[EngineEvent] = []
        token_ids, logprobs, hidden = result.token_ids, result.logprobs, result.hidden_states
        for place, seq in self.landed(step):
            if result.verified and place in result.verified:
                events += self._take_verified(seq, result.verified[place], hidden.get(place, ()))
                continue
            token_id = token_ids.get(place)
            is_sampled = token_id is not None or place in token_ids
            if token_id is None and is_sampled:
                # Its KV is suspect too: it is never published.
                self._scheduler.finish(seq)
                events.append(Failed(request_id=seq.request_id, error=_nothing_to_sample(seq)))
                continue
            self._scheduler.advance(seq, step.num_new_tokens[seq])
            if seq.rows is not None:
                events += self._gather(seq, seq.rows, result.rows.get(place))
                continue
            if seq.request.hold_blocks:
                events.append(
                    Computed(request_id=seq.request_id, num_computed_tokens=seq.num_computed_tokens)
                )
            if seq.prompt_logprobs is not None:
                seq.prompt_logprobs += result.prompt_logprobs.get(place, ())
            if token_id is not None:
                rows = hidden.get(place)
                events.append(self._take_token(seq, token_id, logprobs.get(place), rows))
        return events

    def _gather(
        self, seq: Sequence, gathered: GatheredRows, rows: Tensor | None
    ) -> list[EngineEvent]:
        """Take the states that a step has of a sequence; with the last token they are its end."""
        if rows is not None:
            if not rows.isfinite().all():
                self._scheduler.finish(seq)
                return [Failed(request_id=seq.request_id, error=_not_finite(seq))]
            gathered.add(rows)
        if seq.num_computed_tokens < seq.num_tokens:
            return []
        self._scheduler.finish(seq)
        return [
            PromptStates(
                request_id=seq.request_id,
                parts=gathered.take(),
                num_cached_tokens=seq.num_cached_tokens,
            )
        ]

    def fail_unmasked(self) -> list[EngineEvent]:
        """End the sequences whose grammar cannot continue."""
        events: list[EngineEvent] = []
        for seq in self._scheduler.running.copy():
            error = None if seq.grammar is None else seq.grammar.error
            if error is not None:
                self._scheduler.finish(seq)
                events.append(Failed(request_id=seq.request_id, error=error))
        return events

    def finish_reason(self, seq: Sequence) -> FinishReason | None:
        """Return why the sequence's last token ends it; None if it does not."""
        reason = finish_reason_for(
            seq.token_ids[-1],
            seq.request.sampling,
            num_output_tokens=seq.num_output_tokens,
            num_tokens=seq.num_tokens,
            max_model_len=self.max_model_len,
            final_token_ids=seq.final_token_ids,
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
        hidden_states: tuple[bytes, ...] = (),
        prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None,
        num_draft_tokens: int = 0,
        num_accepted_tokens: int = 0,
    ) -> NewTokens:
        """Return the event with tokens, and finish the sequence if there is a reason."""
        stop_token_id = seq.token_ids[-1] if reason is FinishReason.STOP else None
        if reason is not None:
            self._scheduler.finish(seq)
        return NewTokens(
            request_id=seq.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            hidden_states=hidden_states,
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
        )

    def _may_end(self, seq: Sequence, token_id: int) -> bool:
        """Return quickly whether the last token could end the sequence: usually it cannot."""
        request, num_tokens = seq.request, len(seq.token_ids)
        return (
            num_tokens >= self.max_model_len
            or num_tokens - seq.num_prompt_tokens >= request.sampling.max_tokens
            or token_id in seq.final_token_ids
            or request.hold_blocks
        )

    def _take_verified(
        self, seq: Sequence, verified: Verified, hidden_states: tuple[bytes, ...]
    ) -> list[EngineEvent]:
        """Return the tokens up to the first that ends the sequence: later ones are dropped.

        The KV of the last token, if that was a draft, counts as not computed, as without drafts.
        The KV of rejected drafts is overwritten before any step reads it.
        """
        draft, seq.draft = seq.draft, NO_DRAFT
        num_taken, reason = 0, None
        for token_id in verified.token_ids:
            if not seq.append_token(token_id):
                self._scheduler.finish(seq)
                return [_refused(seq, token_id)]
            num_taken += 1
            if self._may_end(seq, token_id):
                reason = self.finish_reason(seq)
                if reason is not None:
                    break
        is_stuck = verified.is_stuck and reason is None
        if not is_stuck:
            self._scheduler.advance(seq, num_taken)
            self._scheduler.blocks.shrink(seq)
        events: list[EngineEvent] = []
        if num_taken:
            tokens = self.ending(
                seq,
                reason,
                token_ids=tuple(verified.token_ids[:num_taken]),
                logprobs=tuple(verified.logprobs[:num_taken]),
                hidden_states=hidden_states[:num_taken],
                num_draft_tokens=len(draft.token_ids),
                num_accepted_tokens=min(verified.num_accepted, num_taken),
            )
            events.append(tokens)
        if is_stuck:
            self._scheduler.finish(seq)
            events.append(Failed(request_id=seq.request_id, error=_nothing_to_sample(seq)))
        return events

    def _take_token(
        self,
        seq: Sequence,
        token_id: int,
        logprobs: PositionLogprobs | None,
        hidden_states: tuple[bytes, ...] | None,
    ) -> NewTokens | Failed:
        if not seq.append_token(token_id):
            self._scheduler.finish(seq)
            return _refused(seq, token_id)
        if (
            logprobs is None
            and hidden_states is None
            and seq.prompt_logprobs is None
            and not self._may_end(seq, token_id)
        ):
            return NewTokens(request_id=seq.request.request_id, token_ids=(token_id,))
        prompt_logprobs, seq.prompt_logprobs = seq.prompt_logprobs, None
        return self.ending(
            seq,
            self.finish_reason(seq),
            token_ids=(token_id,),
            logprobs=() if logprobs is None else (logprobs,),
            hidden_states=hidden_states or (),
            prompt_logprobs=None if prompt_logprobs is None else tuple(prompt_logprobs),
        )


def _refused(seq: Sequence, token_id: int) -> Failed:
    message = f"request {seq.request_id}: its grammar refuses token {token_id}, which it allowed"
    return Failed(request_id=seq.request_id, error=InternalError(message))


def _not_finite(seq: Sequence) -> Exception:
    return InternalError(f"request {seq.request_id}: the model gave no finite states")


def _nothing_to_sample(seq: Sequence) -> Exception:
    if seq.changes_logits:
        return InvalidRequestError(
            f"request {seq.request_id}: the constraints on its tokens leave none to choose",
            param="allowed_token_ids",
        )
    return InternalError(f"request {seq.request_id}: the model gave no finite logits")
