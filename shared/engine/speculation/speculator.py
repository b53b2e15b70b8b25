"""Gets drafts from the proposer before a step; reports results and measurements afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from shared.engine.grammar.positions import count_masked
from shared.engine.schedule.gates.mask import MAX_WAIT_S
from shared.engine.schedule.lookahead import first_of
from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.sequence.events import NewTokens
from shared.engine.sequence.sequence import Status
from shared.engine.settings.speculation import MAX_DRAFT_TOKENS
from shared.engine.speculation.base import DraftWish, ObservedPart, ObservedStep, StatesReader
from shared.engine.speculation.pace import FIRST_MEAN, DraftPace
from shared.engine.speculation.switch import SpeculationSwitch

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping
    from collections.abc import Sequence as Seq

    from shared.engine.prompt_hidden import PlacedHidden
    from shared.engine.sequence.draft import Draft
    from shared.engine.sequence.events import EngineEvent
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.settings.speculation import SpeculationConfig
    from shared.engine.speculation.base import Proposer
    from shared.engine.speculation.drafts.blocks import PoolDraftBlocks
    from shared.engine.step.hidden import HiddenNeeds, HiddenPool
    from shared.engine.step.result import KeptHidden

log = structlog.get_logger(__name__)

#: Weight of the newest draft in the mean.
_NEWEST = 0.1
#: Rows of hidden states that may exist outside the blocks at a time.
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The measurements of a step."""

    #: Computed tokens, drafts included.
    num_rows: int
    took_s: float
    #: Time of the proposer before it; None if it was not called.
    guessing_s: float | None
    #: Whether the step's time is typical.
    is_steady: bool
    hidden: KeptHidden | None


class Speculator:
    """The speculation of an engine, except for the computation and the check of drafts."""

    def __init__(
        self,
        proposer: Proposer,
        config: SpeculationConfig,
        blocks: PoolDraftBlocks,
        counters: Counter[str],
        hidden: HiddenPool,
        *,
        vocab_size: int,
        max_model_len: int,
    ) -> None:
        self._proposer = proposer
        self._config = config
        self.blocks = blocks
        self._counters = counters
        self._hidden = hidden
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._switch = SpeculationSwitch() if config.adaptive else None
        self._paces: dict[Sequence, DraftPace] = {}
        #: Recent mean of accepted tokens per draft over all sequences; expected of a new sequence.
        self._usual = FIRST_MEAN
        #: Accepted draft tokens by their position in the draft.
        self.accepted_per_pos = [0] * config.max_draft_tokens
        self._broken = False
        #: Time [s] of the proposer for the step being prepared; None if it was not called.
        self.guessing_s: float | None = None

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """The hidden states that the proposer needs."""
        return self._proposer.hidden_needs

    def wants_drafts(self, running: Seq[Sequence], *, must_wait: bool) -> bool:
        """Return whether the next step should have drafts.

        Call it once per step, then `draft` or not.

        `must_wait`: drafts require the end of the step in flight; otherwise steps would overlap.
        """
        self.guessing_s = None
        num_seqs = len(running)
        if self._broken or not running or not self._config.num_for_batch(num_seqs):
            return False
        guessable = [seq for seq in running if self._most(seq, num_seqs)]
        if not guessable or (self._switch is not None and not self._switch.wants_drafts(num_seqs)):
            return False
        return not must_wait or self._is_worth_waiting(guessable)

    def draft(self, running: Seq[Sequence]) -> None:
        """Attach drafts to the sequences that decode. No step may be in flight."""
        start_s = time.monotonic()
        wishes = []
        for seq in running:
            seq.draft = NO_DRAFT
            # Only the last token is left to compute.
            if seq.num_pending_tokens == 1 and seq.status is Status.RUNNING:
                num = self._num_wanted(seq, len(running))
                if num:
                    wishes.append(DraftWish(seq, num))
        try:
            drafts = self._proposer.propose(wishes) if wishes else ()
        except Exception:  # answers do not depend on drafts
            log.exception("proposer_failed", method=self._config.method)
            self._broken = True
            drafts = [NO_DRAFT] * len(wishes)
        for wish, draft in zip(wishes, drafts, strict=True):
            wish.seq.draft = self._cut(wish, draft)
        self.guessing_s = time.monotonic() - start_s

    def forget(self, departed: list[Sequence]) -> None:
        """Drop the states of sequences that have lost their blocks, and clear the list."""
        for seq in departed:
            self._paces.pop(seq, None)
            self._proposer.forget(seq)
        departed.clear()

    def receive(self, seq: Sequence, placed: PlacedHidden, first_position: int) -> None:
        """Pass on the hidden states of all tokens from `first_position` on, sent by a peer."""
        end = seq.num_tokens - 1  # nothing is known yet about the token after the last one
        if self._broken or seq.has_embeds or not isinstance(self._proposer, StatesReader):
            return
        try:
            for first in range(max(placed.begin, first_position), end, _ROWS_AT_ONCE):
                states = self._hidden.read(placed, first, min(_ROWS_AT_ONCE, end - first))
                self._proposer.receive(seq, first, states)
        except Exception:  # answers do not depend on drafts
            log.exception("proposer_failed", method=self._config.method)
            self._broken = True

    def reclaim(self, num_blocks: int) -> None:
        """Make the proposer release up to `num_blocks` blocks for the engine's sequences."""
        self._proposer.give_back(num_blocks)

    def after_step(
        self,
        step: StepReport,
        before: Mapping[Sequence, tuple[int, int]],
        events: Iterable[EngineEvent],
    ) -> None:
        """Process a collected step.

        before: its sequences, in the order of the batch, each with its earlier numbers of computed
        tokens and of all tokens.
        """
        checked = {
            event.request_id: (event.num_draft_tokens, event.num_accepted_tokens)
            for event in events
            if isinstance(event, NewTokens) and event.num_draft_tokens
        }
        parts = []
        for place, (seq, (num_computed, num_tokens)) in enumerate(before.items()):
            num_new = seq.num_computed_tokens - num_computed
            drafted, accepted = checked.get(seq.request_id, (0, 0))
            if drafted:
                self._count(seq, drafted, accepted)
            if num_new > 0 and not seq.has_embeds:
                parts.append(
                    ObservedPart(
                        seq,
                        first_position=num_computed,
                        num_tokens=num_new,
                        first_row=0 if step.hidden is None else step.hidden.first_rows[place],
                        new_token_ids=seq.token_ids[num_tokens:],
                        num_drafted=drafted,
                        num_accepted=accepted,
                    )
                )
        self._measure(step, parts, num_seqs=len(before))
        if parts and not self._broken:
            self._tell(step, parts)

    def close(self) -> None:
        """Close the proposer."""
        self._proposer.close()

    def _is_worth_waiting(self, guessable: list[Sequence]) -> bool:
        """Return whether drafts are likely for any sequence of which a token is being computed."""
        paces = {seq: self._paces[seq] for seq in guessable if seq in self._paces}
        resting = {seq for seq, pace in paces.items() if pace.rests}
        try:
            for seq in guessable:
                if seq.num_unknown_tokens and seq not in resting and self._proposer.may_guess(seq):
                    return True
        except Exception:  # answers do not depend on drafts
            log.exception("proposer_failed", method=self._config.method)
            self._broken = True
        for pace in paces.values():
            pace.pass_step()
        return False

    def _num_wanted(self, seq: Sequence, num_seqs: int) -> int:
        most = self._most(seq, num_seqs)
        if not most or self._switch is None:
            return most
        if seq not in self._paces:
            self._paces[seq] = DraftPace(self._usual)
        return self._paces[seq].next_num(most)

    def _most(self, seq: Sequence, num_seqs: int) -> int:
        """Return the maximum of drafts: what could be accepted, and what the request allows.

        A step yields one token more than it accepts drafts, so the last token needs none.
        """
        sampling, num = seq.request.sampling, self._config.num_for_batch(num_seqs)
        if sampling.num_speculative_tokens is not None:
            num = min(sampling.num_speculative_tokens, MAX_DRAFT_TOKENS)
        if seq.request.hold_blocks or seq.is_computed_whole or seq.rows or seq.has_embeds:
            return 0  # proposers guess from tokens
        left = min(
            sampling.max_tokens - seq.num_output_tokens, self._max_model_len - seq.num_tokens
        )
        return max(0, min(num, left - 1))

    def _cut(self, wish: DraftWish, draft: Draft) -> Draft:
        """Return the part of a draft to compute: the only place where tokens are ruled out."""
        num = min(len(draft.token_ids), wish.max_tokens)
        for place in range(num):
            if not 0 <= draft.token_ids[place] < self._vocab_size:
                num = place
                break
        if num and wish.seq.grammar is not None:
            num = count_masked(wish.seq.grammar, draft.token_ids[:num], MAX_WAIT_S)
        return first_of(draft, num)

    def _count(self, seq: Sequence, num_drafted: int, num_accepted: int) -> None:
        self._counters["spec_decode_num_drafts"] += 1
        self._counters["spec_decode_num_draft_tokens"] += num_drafted
        self._counters["spec_decode_num_accepted_tokens"] += num_accepted
        missing = num_accepted - len(self.accepted_per_pos)
        self.accepted_per_pos += [0] * missing
        for place in range(num_accepted):
            self.accepted_per_pos[place] += 1
        self._usual += _NEWEST * (num_accepted - self._usual)
        if seq in self._paces:
            self._paces[seq].note(num_drafted=num_drafted, num_accepted=num_accepted)

    def _measure(self, step: StepReport, parts: list[ObservedPart], *, num_seqs: int) -> None:
        """Measure a step, unless it has prompts in it: those show nothing about decoding."""
        num_rows = step.num_rows
        num_drafted = sum(part.num_drafted for part in parts)
        if self._switch is None or len(parts) != num_seqs or num_rows != num_seqs + num_drafted:
            return
        if step.guessing_s is not None:
            self._switch.note_tried(
                num_seqs,
                num_rows=num_rows,
                num_tokens=sum(len(part.new_token_ids) for part in parts),
                took_s=step.took_s,
                guessing_s=step.guessing_s,
            )
        elif step.is_steady:
            self._switch.note_plain(num_seqs, step.took_s)

    def _tell(self, step: StepReport, parts: list[ObservedPart]) -> None:
        observed = ObservedStep(parts)
        if step.hidden is not None:
            observed = ObservedStep(parts, step.hidden.final, step.hidden.by_layer)
        try:
            self._proposer.observe(observed)
        except Exception:  # answers do not depend on drafts
            log.exception("proposer_failed", method=self._config.method)
            self._broken = True
