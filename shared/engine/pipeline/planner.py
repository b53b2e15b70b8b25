"""Conversion of a schedule to the plan of a step, the input of a runner."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import torch

from shared.engine.grammar.positions import fill_mask_behind
from shared.engine.sequence.draft import NO_DRAFT
from shared.engine.sequence.sequence import NO_BLOCK, Status
from shared.engine.step.plan import (
    NO_SLOT,
    GivenRows,
    NewBlocks,
    PromptScore,
    RowMasks,
    RowStart,
    StepPlan,
    WantedRows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shared.engine.adapters.slots import AdapterSlots
    from shared.engine.prompt_rows import PromptRows
    from shared.engine.sequence.sequence import Sequence
    from shared.request.prompt_embeds import PromptEmbeds

_WORD_BITS = 32


class StepPlanner:
    """Assigns a row of the runner to each running sequence, and tracks what the runner has got.

    The runner must get every plan, in order.
    """

    def __init__(
        self, *, max_num_seqs: int, vocab_size: int, slots: AdapterSlots | None = None
    ) -> None:
        """`slots`: of the adapters; None if there are none."""
        #: The sequence that each row belongs to.
        self._owners: list[Sequence | None] = [None] * max_num_seqs
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._slots = slots
        self._num_words = -(-vocab_size // _WORD_BITS)

    def ordered(self, num_new_tokens: Mapping[Sequence, int]) -> Mapping[Sequence, int]:
        """Return a step with the sequences of each adapter together, otherwise in the same order.

        Those without an adapter come first.
        """
        slots = self._adapters(num_new_tokens)
        if not slots:
            return num_new_tokens
        places = zip(slots, range(len(slots)), num_new_tokens.items(), strict=True)
        return dict(item for _, _, item in sorted(places))

    def _adapters(self, seqs: Iterable[Sequence]) -> list[int]:
        """Return the slot of each sequence; an empty list if none has an adapter."""
        slots = self._slots
        if slots is None or not any(seq.identity.adapter for seq in seqs):
            return []
        digests = [seq.identity.adapter for seq in seqs]
        return [slots[digest] if digest else NO_SLOT for digest in digests]

    def plan(self, num_new_tokens: Mapping[Sequence, int]) -> StepPlan:
        """Return the plan for computing these numbers of tokens after those computed or in flight.

        The sequences' progress is unchanged. Raises the error of a grammar that has no mask.
        """
        plan = StepPlan(
            num_new_tokens=list(num_new_tokens.values()), adapters=self._adapters(num_new_tokens)
        )
        owners = self._owners
        for place, (seq, num) in enumerate(num_new_tokens.items()):
            row = seq.row
            if row is None or owners[row] is not seq or seq.needs_host_tokens or seq.new_places:
                row = self._tell(seq, plan)
            first = seq.num_computed_tokens + seq.num_in_flight_tokens
            plan.rows.append(row)
            plan.firsts.append(first)
            if seq.num_unknown_tokens:
                # A zero for now: the row of the token tells where it comes from.
                plan.fed.append(len(plan.token_ids))
                plan.fed_rows.append(row)
                plan.token_ids += [0] * num
            elif num == 1:
                plan.token_ids.append(seq.token_ids[first])
            else:
                plan.token_ids += seq.token_ids[first : first + num]
                plan.token_ids += seq.draft.token_ids
            if seq.embeds is not None and first < seq.num_prompt_tokens:
                _give(seq.embeds, first, num, plan)
            if seq.rows is not None:
                _want_rows(place, seq, seq.rows.which, first, first + num, plan)
            elif first + num >= len(seq.token_ids) + seq.num_unknown_tokens:
                plan.sampled.append(place)
                if seq.needs_host_tokens or seq.draft is not NO_DRAFT:
                    self._choose_now(place, seq, plan)
            if seq.prompt_logprobs is not None or seq.hidden is not None:
                _want_more(place, seq, first, num, plan)
        return plan

    def _tell(self, seq: Sequence, plan: StepPlan) -> int:
        """Add what is new in the sequence's row; return the row."""
        row = seq.row
        if row is None or self._owners[row] is not seq:
            row = self._take_row(seq)
            plan.starts.append(_start(row, seq))
            for group, table in enumerate(seq.tables):
                if NO_BLOCK not in table:
                    plan.new_blocks.append(NewBlocks(row, group, 0, table[:]))
                    continue
                places = [place for place, block in enumerate(table) if block >= 0]
                plan.new_blocks += _new_blocks(row, group, table, places)
            for group, place, block in seq.state_places.left:
                plan.new_blocks.append(NewBlocks(row, group, place, array("i", [block])))
            seq.new_places.clear()
            seq.state_places.left.clear()
        elif seq.needs_host_tokens and len(seq.token_ids) > seq.num_told_tokens:
            plan.new_tokens[row] = seq.token_ids[seq.num_told_tokens :]
        seq.num_told_tokens = len(seq.token_ids)
        if seq.new_places:
            for group, table in enumerate(seq.tables):
                places = [
                    place
                    for own, place in seq.new_places
                    if own == group and place < len(table) and table[place] >= 0
                ]
                plan.new_blocks += _new_blocks(row, group, table, places)
            seq.new_places.clear()
        return row

    def _take_row(self, seq: Sequence) -> int:
        if not self._free_rows:
            # The planner is not notified when a sequence stops running. It needs no row then.
            for row, owner in enumerate(self._owners):
                if owner is not None and (owner.status is not Status.RUNNING or owner.row != row):
                    self._owners[row] = None
                    self._free_rows.append(row)
        row = self._free_rows.pop()
        self._owners[row] = seq
        seq.row = row
        return row

    def _choose_now(self, place: int, seq: Sequence, plan: StepPlan) -> None:
        """Make the step synchronous: the host must know its tokens before it can continue."""
        plan.is_synchronous = True
        draft = seq.draft
        if draft is not NO_DRAFT:
            plan.num_drafts[place] = len(draft.token_ids)
            if draft.probs is not None:
                plan.draft_probs[place] = draft.probs
        if seq.grammar is not None:
            bits = torch.empty(1 + len(draft.token_ids), self._num_words, dtype=torch.int32)
            for num in range(len(bits)):
                fill_mask_behind(seq.grammar, draft.token_ids[:num], bits, num)
            plan.masks.append(RowMasks(place, bits))


def _new_blocks(row: int, group: int, table: array[int], places: list[int]) -> Iterator[NewBlocks]:
    """Yield the blocks at ascending places of a table, neighbours together."""
    first = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] != places[number - 1] + 1:
            yield NewBlocks(
                row, group, places[first], table[places[first] : places[number - 1] + 1]
            )
            first = number


def _start(row: int, seq: Sequence) -> RowStart:
    needs_host = seq.needs_host_tokens
    tokens = seq.token_ids[:] if needs_host else seq.token_ids[:0]
    return RowStart(row, seq.request.sampling, needs_host, tokens, seq.num_prompt_tokens)


def _want_more(place: int, seq: Sequence, first: int, num: int, plan: StepPlan) -> None:
    """Ask for scores of a prompt's tokens, and for their hidden states in the pool's blocks."""
    if seq.prompt_logprobs is not None:
        plan.scores.append(_score(place, seq, first, num))
        plan.is_synchronous = True
    if seq.hidden is not None and seq.request.hold_blocks:
        plan.hidden[place] = seq.hidden


def _want_rows(
    place: int, seq: Sequence, which: PromptRows, first: int, end: int, plan: StepPlan
) -> None:
    """Ask for what a step that computes the tokens from `first` up to `end` has of the states."""
    if which.are_in(first, end, len(seq.token_ids)):
        plan.wanted_rows.append(WantedRows(place, which))


def _give(embeds: PromptEmbeds, first: int, num: int, plan: StepPlan) -> None:
    """Add the embeddings of the last `num` tokens of the plan, which begin at position `first`."""
    begin = len(plan.token_ids) - num
    for position, rows, data in embeds.within(first, first + num):
        at, num_given = begin + position - first, len(data) // rows.row_bytes
        plan.token_ids[at : at + num_given] = [0] * num_given
        plan.given.append(GivenRows(at, rows.dtype.value, rows.width, data))


def _score(place: int, seq: Sequence, first: int, num: int) -> PromptScore:
    """Return the score of prompt tokens, each given the tokens before it."""
    end = min(first + num + 1, seq.num_prompt_tokens)
    tokens = seq.token_ids[first + 1 : end].tolist()
    sampling = seq.request.sampling
    return PromptScore(
        place, tokens, sampling.prompt_logprobs or 0, sampling.logprobs_mode.is_logits
    )
