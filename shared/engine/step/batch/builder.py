"""Lays out plans as batches, each in one contiguous buffer.

The numbers of a step are written into one staging buffer, so that one copy brings them to a device.
Block tables are kept from step to step: only new blocks are added to a row.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from shared.engine.prompt_rows import PromptRows
from shared.engine.step.batch.batch import Batch
from shared.engine.step.batch.buffers import BatchLayout
from shared.engine.step.batch.given import given_embeds
from shared.engine.step.plan import NO_SLOT, StepPlan
from shared.errors import InternalError
from shared.model.adapted.rows import AdapterRows
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from shared.engine.step.batch.buffers import PackedStep, StepBuffers


class _Loan:
    """A batch whose buffers are in use until the end of the context.

    A class: with its code in no cache, a generator costs 25 microseconds more.
    """

    def __init__(self, batch: Batch, buffers: StepBuffers, lent: set[StepBuffers]) -> None:
        self._batch = batch
        self._buffers = buffers
        self._lent = lent

    def __enter__(self) -> Batch:
        return self._batch

    def __exit__(self, *_: object) -> None:
        self._lent.discard(self._buffers)


class _KeptBatch:
    """A batch whose sequences compute one token each, with its memory as flat numbers."""

    def __init__(self, batch: Batch, packed: PackedStep, seq_lens: list[int], room: int) -> None:
        """`seq_lens`: the list in the batch's metadata. `room`: tokens in a row of its tables."""
        self.batch = batch
        self.packed = packed
        self.seq_lens_list = seq_lens
        self.room = room
        arrays = packed.arrays
        self.token_ids = _flat(arrays["token_ids"], "q")
        self.positions = _flat(arrays["positions"], "q")
        self.slots = _flat(arrays["slots"], "q")
        self.seq_lens = _flat(arrays["seq_lens"], "i")


class BatchBuilder:
    """Keeps a row of block ids per running sequence and group, and packs steps from them."""

    #: Whether the model must return the hidden states of all tokens in every step.
    keeps_hidden = False

    def __init__(
        self,
        buffers: StepBuffers,
        *,
        max_num_seqs: int,
        max_blocks_per_seq: int,
        block_size: int,
        num_groups: int = 1,
        num_state_groups: int = 0,
        scratch_block: int | None = None,
        beside: StepBuffers | None = None,
    ) -> None:
        """Make the rows. Of the `num_groups` groups the last `num_state_groups` have states.

        `scratch_block` is what padding reads and writes; without it no step is padded. `beside`:
        buffers of a step that is lent while others are.
        """
        self._buffers = buffers
        self._beside = beside
        self._block_size = block_size
        self._scratch_block = scratch_block
        self._tables = np.zeros((num_groups, max_num_seqs, max_blocks_per_seq), dtype=np.int32)
        #: The same memory, for single numbers.
        self._blocks = self._tables.data
        self._num_token_groups = num_groups - num_state_groups
        #: The buffers that are lent.
        self._lent: set[StepBuffers] = set()
        #: The last batch, if the next one may be its continuation.
        self._kept: _KeptBatch | None = None

    def lend(
        self, plan: StepPlan, *, pad_to: int | None = None, beside: bool = False
    ) -> AbstractContextManager[Batch]:
        """Lay out a plan. Each plan once, in order: its new blocks are added.

        `pad_to` adds sequences of one token, up to that number, whose results are unused. Every
        sequence must have one new token then, and the block tables get their full width.

        The batch must not be used after the context, which follows at once. On a device that
        computes in stream order, work launched within the context may still run. `beside`: others
        are lent meanwhile.

        Raises:
            InternalError: another batch is lent, or another one `beside`.
        """
        buffers = self._beside if beside else self._buffers
        if buffers is None or buffers in self._lent:
            raise InternalError("a step is laid out while another one is being launched")
        self._take_blocks(plan)
        batch = self._next(plan, pad_to, buffers) or self._build(plan, pad_to, buffers)
        self._lent.add(buffers)
        return _Loan(batch, buffers, self._lent)

    def padding(self, size: int) -> Batch:
        """Lend a batch of `size` sequences whose results are not read.

        A graph recorded with it reads the same addresses later, with their content at that time.
        """
        with self.lend(StepPlan(), pad_to=size) as batch:
            return batch

    def _build(self, plan: StepPlan, pad_to: int | None, buffers: StepBuffers) -> Batch:
        self._kept = None  # its tables may have changed, wherever this one is laid out
        num_seqs = len(plan.rows)
        num_padding = 0 if pad_to is None else pad_to - num_seqs
        num_tokens = len(plan.token_ids)
        # Lists: behind a model's weights no code is in a cache, and each array's operation costs 20
        # to 60 microseconds.
        starts = [0, *accumulate(plan.num_new_tokens)]
        ends = list(map(add, plan.firsts, plan.num_new_tokens))
        width = self._width(ends)
        if pad_to is not None:
            width = self._tables.shape[2]
            if num_tokens != num_seqs or num_padding < 0 or self._scratch_block is None:
                raise InternalError(f"{num_tokens} tokens cannot be padded to {pad_to}")
        layout = BatchLayout(
            num_tokens + num_padding,
            num_seqs + num_padding,
            width,
            max(1, self._num_token_groups),  # without any, the first metadata has tables too
            len(self._tables) - self._num_token_groups,
        )
        packed = buffers.take(layout)
        at = packed.arrays
        at["query_start_loc"][: num_seqs + 1] = starts
        at["token_ids"][:num_tokens] = plan.token_ids
        at["seq_lens"][:num_seqs] = ends
        self._place_tokens(packed, plan, starts)
        if self._num_token_groups < len(self._tables):
            self._place_states(packed, plan, np.array(ends, np.int64))
        if plan.fed:
            at["fed_rows"][:num_tokens] = -1
            at["fed_rows"][plan.fed] = plan.fed_rows
        at["sampled_rows"][: len(plan.sampled)] = [plan.rows[place] for place in plan.sampled]
        places = _logit_places(plan, starts)
        if plan.wanted_rows and not self._keeps_all(plan):
            places = sorted({*places, *_single_rows(plan, starts).values()})
        num_kept = None if len(places) == num_tokens else len(places)
        if num_kept is not None:
            at["logits_at"][:num_kept] = places
        if num_padding:
            self._pad(packed, num_seqs, num_padding)
        kept = None if num_kept is None else places
        on = buffers.upload(packed)
        batch = self._batch(plan, packed, on, starts, ends, num_padding, kept)
        if buffers is self._buffers:
            self._keep(batch, packed, ends)
        return batch if not plan.wanted_rows else self._with_rows(batch, kept)

    def _may_continue(self, plan: StepPlan) -> bool:
        """Return whether a plan is one token of each sequence, and no more."""
        has_more = self.keeps_hidden or plan.fed or plan.wanted_rows or not plan.rows
        return self._buffers.keeps_steps and plan.is_decoding and not has_more

    def _keep(self, batch: Batch, packed: PackedStep, seq_lens: list[int]) -> None:
        """Let the next batch go on with this one, if it may. `seq_lens`: its metadata's list."""
        if self._may_continue(batch.plan) and not batch.num_padding:
            room = packed.layout.table_width * self._block_size
            self._kept = _KeptBatch(batch, packed, seq_lens, room)

    def _next(self, plan: StepPlan, pad_to: int | None, buffers: StepBuffers) -> Batch | None:
        """Return the last batch with the next token of each of its sequences.

        None: the plan is something else, or does not fit into its tables.
        """
        kept = self._kept
        if (
            kept is None
            or buffers is not self._buffers
            or pad_to is not None
            or plan.rows != kept.batch.plan.rows
            or not self._may_continue(plan)
            or max(plan.firsts) >= kept.room
        ):
            return None
        # No array's operation, and as few different ones as possible: see `_build`.
        rows, firsts, block_size = plan.rows, plan.firsts, self._block_size
        kept.seq_lens_list[:] = ends = [first + 1 for first in firsts]
        kept.token_ids[:] = array("q", plan.token_ids)
        kept.positions[:] = array("q", firsts)
        kept.seq_lens[:] = array("i", ends)
        blocks = self._blocks
        kept.slots[:] = array(
            "q",
            [
                blocks[group, row, first // block_size] * block_size + first % block_size
                for group in range(kept.packed.layout.num_groups)
                for row, first in zip(rows, firsts, strict=True)
            ],
        )
        if plan.new_blocks:
            self._place_tables(kept.packed, np.array(rows, np.int64))
        if self._num_token_groups < len(self._tables):
            self._place_states(kept.packed, plan, np.array(ends, np.int64))
        kept.batch.plan = plan
        return kept.batch

    def _keeps_all(self, plan: StepPlan) -> bool:
        """Return whether the model returns the states of all tokens."""
        return (
            self.keeps_hidden
            or bool(plan.scores)
            or any(wanted.which in (PromptRows.SUM, PromptRows.ALL) for wanted in plan.wanted_rows)
        )

    def _with_rows(self, batch: Batch, kept: Sequence[int] | None) -> Batch:
        """Return a batch with the places of single rows that are wanted.

        kept: the tokens, ascending, whose states the model returns, unless it returns all.
        """
        plan, rows = batch.plan, _single_rows(batch.plan, batch.starts)
        if self._keeps_all(plan):
            return replace(batch, rows_at=rows)
        at = {
            token: row
            for row, token in enumerate(range(batch.starts[-1]) if kept is None else kept)
        }
        logits = [at[token] for token in _logit_places(plan, batch.starts)]
        device = batch.token_ids.device
        return replace(
            batch,
            rows_at={place: at[token] for place, token in rows.items()},
            logits_at=torch.tensor(logits, dtype=torch.int64, device=device),
        )

    def _batch(
        self,
        plan: StepPlan,
        packed: PackedStep,
        on: Mapping[str, torch.Tensor],
        starts: list[int],
        seq_lens: list[int],
        num_padding: int,
        logits_at: Sequence[int] | None,
    ) -> Batch:
        last = None if logits_at is None else on["logits_at"][: len(logits_at)]
        sampled_rows = on["sampled_rows"]
        # Mostly all of them choose: then no slice, which costs as much as an array's operation.
        if len(plan.sampled) < packed.layout.num_seqs:
            sampled_rows = sampled_rows[: len(plan.sampled)]
        keeps_all = self._keeps_all(plan)
        if num_padding:
            seq_lens = seq_lens + [1] * num_padding
        first, *others = (
            AttentionMetadata(
                query_start_loc=on["query_start_loc"],
                seq_lens=on["seq_lens"],
                block_tables=block_tables,
                slot_mapping=slots,
                query_lens_list=plan.num_new_tokens + [1] * num_padding,
                seq_lens_list=seq_lens,
                wanted=None if keeps_all else last,
                wanted_list=() if keeps_all or logits_at is None else logits_at,
                states=on["states"] if packed.layout.num_state_groups else None,
            )
            for block_tables, slots in packed.by_group
        )
        if others or plan.adapters:
            first = replace(first, others=tuple(others), adapters=_adapter_rows(plan))
        return Batch(
            plan=plan,
            token_ids=on["token_ids"],
            positions=on["positions"],
            metadata=first,
            starts=starts,
            fed_rows=on["fed_rows"] if plan.fed else None,
            logits_at=last if keeps_all else None,
            sampled_rows=sampled_rows,
            num_padding=num_padding,
            given=given_embeds(plan.given, on["token_ids"].device) if plan.given else None,
        )

    def _take_blocks(self, plan: StepPlan) -> None:
        for new in plan.new_blocks:
            end = new.first + len(new.block_ids)
            self._tables[new.group, new.row, new.first : end] = new.block_ids

    def _width(self, ends: Sequence[int]) -> int:
        """Return the number of blocks of the longest context, at least 1."""
        return max(1, -(-max(ends, default=0) // self._block_size))

    def _place_tokens(self, packed: PackedStep, plan: StepPlan, starts: list[int]) -> None:
        """Write positions, slots and block tables."""
        num_tokens = starts[-1]
        at, block_size = packed.arrays, self._block_size
        rows = row_of = np.array(plan.rows, np.int64)
        positions = at["positions"][:num_tokens]
        if num_tokens == len(rows):
            positions[:] = plan.firsts
        else:
            lens = np.array(plan.num_new_tokens)
            shifts = np.array(plan.firsts) - np.array(starts[:-1])
            positions[:] = np.arange(num_tokens) + np.repeat(shifts, lens)
            row_of = np.repeat(rows, lens)
        places, offsets = np.divmod(positions, block_size)
        tables = self._tables[: packed.layout.num_groups]
        slots = at["slots"][:, :num_tokens]
        np.multiply(tables[:, row_of, places], block_size, out=slots, dtype=np.int64)
        slots += offsets
        self._place_tables(packed, rows)

    def _place_tables(self, packed: PackedStep, rows: NDArray[np.int64]) -> None:
        layout = packed.layout
        tables = self._tables[: layout.num_groups, rows, : layout.table_width]
        packed.arrays["block_tables"][:, : len(rows)] = tables

    def _place_states(self, packed: PackedStep, plan: StepPlan, ends: NDArray[np.int64]) -> None:
        """Write the blocks with states: that of the last token before a step, and in it."""
        rows, firsts = np.array(plan.rows, np.int64), np.array(plan.firsts, np.int64)
        for number, table in enumerate(self._tables[self._num_token_groups :]):
            out = packed.arrays["states"][number, : len(rows)]
            before = table[rows, np.maximum(firsts - 1, 0) // self._block_size]
            out[:, 0] = np.where(firsts > 0, before, -1)
            out[:, 1] = table[rows, (ends - 1) // self._block_size]

    def _pad(self, packed: PackedStep, num_seqs: int, num_padding: int) -> None:
        """Let every padding row compute token 0 at position 0 of the scratch block.

        Their slots differ while the block has room; rows with equal slots, and states, write equal
        bytes.
        """
        assert self._scratch_block is not None
        at = packed.arrays
        for name in ("token_ids", "positions"):
            at[name][num_seqs:] = 0
        at["fed_rows"][num_seqs:] = -1
        at["seq_lens"][num_seqs:] = 1
        at["query_start_loc"][num_seqs + 1 :] = np.arange(num_seqs + 1, num_seqs + num_padding + 1)
        offsets = np.arange(num_padding) % self._block_size
        at["slots"][:, num_seqs:] = self._scratch_block * self._block_size + offsets
        at["block_tables"][:, num_seqs:] = self._scratch_block
        at["states"][:, num_seqs:] = -1, self._scratch_block


def _flat(numbers: NDArray[Any], code: Literal["q", "i"]) -> memoryview:
    """Return the memory of integers as `array` writes them."""
    return numbers.reshape(-1).data.cast("B").cast(code)


def _adapter_rows(plan: StepPlan) -> AdapterRows | None:
    if not plan.adapters:
        return None
    slots = [None if slot == NO_SLOT else slot for slot in plan.adapters]
    return AdapterRows.of_sequences(plan.num_new_tokens, slots)


def _single_rows(plan: StepPlan, starts: list[int]) -> dict[int, int]:
    """Return, by index of the sequences that want one row: that token's index in the batch."""
    return {
        own.place: starts[own.place + 1] - 1 if own.which is PromptRows.LAST else starts[own.place]
        for own in plan.wanted_rows
        if own.which in (PromptRows.LAST, PromptRows.FIRST)
    }


def _logit_places(plan: StepPlan, starts: list[int]) -> list[int]:
    """Return the indexes of each sampled sequence's last token and drafts in the batch."""
    if len(plan.token_ids) == len(plan.rows):
        return plan.sampled  # one token each
    num_drafts = plan.num_drafts
    return [
        token
        for place in plan.sampled
        for token in range(starts[place + 1] - 1 - num_drafts.get(place, 0), starts[place + 1])
    ]
