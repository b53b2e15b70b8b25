"""Drafts by a small model, which continues the sequence token by token.

Its KV depends on the tokens alone. So it is computed when a sequence first drafts, whether its
prompt was computed here, came from a peer or was in the prefix cache, and again after a preemption:
it is never sent. The time that a step of the engine spends on it is limited; meanwhile the sequence
does not draft.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from shared.engine.sequence.draft import NO_DRAFT, Draft
from shared.engine.sequence.request import KVSource
from shared.engine.settings.speculation import HandOffPolicy
from shared.engine.speculation.drafts.batch import DraftRow, pack
from shared.engine.speculation.drafts.choice import DraftChoice
from shared.engine.speculation.drafts.loading import load_draft
from shared.engine.speculation.drafts.memory import DraftMemory
from shared.engine.speculation.drafts.pages import DraftPages
from shared.engine.step.hidden import HiddenNeeds

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.speculation.base import DraftWish, ObservedStep, ProposerContext


@dataclass(slots=True, eq=False)
class _State:
    """The draft's KV of one sequence."""

    table: array[int] = field(default_factory=lambda: array("i"))
    #: Number of the sequence's tokens whose KV is computed.
    num_computed: int = 0
    #: Draft tokens after those, whose KV is computed too.
    guessed: list[int] = field(default_factory=list)

    def confirm(self, token_ids: array[int]) -> None:
        """Keep the draft tokens that the sequence has accepted."""
        for token in self.guessed:
            if self.num_computed >= len(token_ids) or token_ids[self.num_computed] != token:
                break
            self.num_computed += 1
        self.guessed.clear()


@dataclass(slots=True, eq=False)
class _Drafting:
    """A sequence that drafts in this call."""

    wish: DraftWish
    state: _State
    max_tokens: int
    #: Its index among the wishes.
    place: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[torch.Tensor] = field(default_factory=list)


class DraftModelProposer:
    """See `Proposer`. Most likely tokens, or drawn ones with `options: {"sample": true}`."""

    def __init__(self, context: ProposerContext) -> None:
        """Use this draft model.

        Raises:
            ConfigError: it cannot be used with this target.
        """
        self._draft = load_draft(context)
        self._device = context.arena.device
        self._pages = DraftPages(context, self._draft.spec, self._draft.dtype)
        self._memory: DraftMemory[_State] = DraftMemory(self._pages)
        self._max_len = min(context.max_model_len, self._draft.spec.max_model_len)
        self._max_batched_tokens = context.engine_config.max_num_batched_tokens
        self._only_local = context.config.hand_off == HandOffPolicy.NONE
        self._choice = DraftChoice(samples=bool(context.config.options.get("sample", False)))

    @property
    def hidden_needs(self) -> HiddenNeeds:
        """No hidden states."""
        return HiddenNeeds()

    def may_guess(self, seq: Sequence) -> bool:
        """Return True: a model can always draft."""
        return True

    @torch.inference_mode()
    def propose(self, wishes: Seq[DraftWish]) -> Seq[Draft]:
        """See `Proposer.propose`."""
        drafting = self._begin(wishes)
        hidden = self._catch_up(drafting)
        drafting = [one for one in drafting if one.state.num_computed == one.wish.seq.num_tokens]
        active = drafting
        while active and hidden is not None:
            self._choose(active, hidden)
            still = [i for i, one in enumerate(active) if len(one.token_ids) < one.max_tokens]
            active = [active[i] for i in still]
            hidden = self._go_on(active) if active else None
        drafts = [NO_DRAFT] * len(wishes)
        for one in drafting:
            one.state.guessed = one.token_ids[:-1]
            probs = torch.stack(one.probs) if one.probs else None
            drafts[one.place] = Draft(tuple(one.token_ids), probs)
        return drafts

    def observe(self, step: ObservedStep) -> None:
        """Do nothing: all tokens are in the sequence."""

    def forget(self, seq: Sequence) -> None:
        """See `Proposer.forget`."""
        self._memory.forget(seq)

    def give_back(self, num_blocks: int) -> None:
        """See `Proposer.give_back`."""
        self._memory.give_back(num_blocks)

    def close(self) -> None:
        """See `Proposer.close`."""
        self._memory.close()

    def _begin(self, wishes: Seq[DraftWish]) -> list[_Drafting]:
        """Return the sequences for which there is room."""
        drafting = []
        for place, wish in enumerate(wishes):
            seq = wish.seq
            max_tokens = min(wish.max_tokens, self._max_len - seq.num_tokens + 1)
            if max_tokens < 1 or (self._only_local and seq.request.kv_source is KVSource.TRANSFER):
                continue
            state = self._memory.get(seq) or self._memory.add(seq, _State)
            if state is None:
                continue
            state.confirm(seq.token_ids)
            # The last token is always computed: the token after it is drafted.
            state.num_computed = min(state.num_computed, seq.num_tokens - 1)
            # The last draft token is never computed here.
            if self._memory.try_grow(seq, state, seq.num_tokens + max_tokens - 1):
                drafting.append(_Drafting(wish, state, max_tokens, place))
        return drafting

    def _catch_up(self, drafting: Seq[_Drafting]) -> torch.Tensor | None:
        """Compute KV up to the last token, within a step's limit; shortest first.

        Returns the last hidden states of the sequences that are complete, in the order of
        `drafting`.
        """
        left = self._max_batched_tokens
        rows: dict[int, DraftRow] = {}
        missing = [one.wish.seq.num_tokens - one.state.num_computed for one in drafting]
        for i in sorted(range(len(drafting)), key=lambda i: missing[i]):
            num = min(missing[i], left)
            if not num:
                break
            left -= num
            rows[i] = _row(drafting[i], drafting[i].state.num_computed, num)
            drafting[i].state.num_computed += num
        if not rows:
            return None
        order = sorted(rows)
        done = [row for row, i in enumerate(order) if missing[i] == len(rows[i].token_ids)]
        return self._forward([rows[i] for i in order], done)

    def _go_on(self, active: Seq[_Drafting]) -> torch.Tensor:
        rows = []
        for one in active:
            first = one.state.num_computed + len(one.token_ids) - 1
            rows.append(DraftRow(one.token_ids[-1:], first, one.state.table))
        return self._forward(rows, None)

    def _forward(self, rows: Seq[DraftRow], wanted: Seq[int] | None) -> torch.Tensor:
        batch = pack(rows, self._pages.page_size, self._device, wanted=wanted)
        return self._draft.model.forward(
            batch.token_ids, batch.positions, (self._pages.kv_cache,), batch.metadata
        )

    def _choose(self, active: Seq[_Drafting], hidden: torch.Tensor) -> None:
        logits = self._draft.model.compute_logits(hidden)
        seqs = [one.wish.seq for one in active]
        places = [one.wish.seq.num_tokens + len(one.token_ids) for one in active]
        tokens, probs = self._choice.choose(logits, seqs, places)
        for i, one in enumerate(active):
            one.token_ids.append(tokens[i])
            if i in probs:
                one.probs.append(probs[i])


def _row(one: _Drafting, first: int, num: int) -> DraftRow:
    return DraftRow(one.wish.seq.token_ids[first : first + num], first, one.state.table)
