"""A scheduled step as the tensors that the model takes, in one run of bytes.

The numbers of a step are written into one staging buffer, so that they reach a device in one copy.
Block tables are kept from step to step: a sequence has a row, and only new blocks are added to it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shared.engine.sequence.sequence import Status
from shared.engine.step.batch_layout import BatchLayout
from shared.engine.step.batch_tokens import fill_token_ids, logit_places
from shared.errors import InternalError
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from shared.engine.sequence.sequence import Sequence
    from shared.engine.step.buffers import PackedStep, StepBuffers


@dataclass(frozen=True, slots=True)
class Batch:
    """All sequences' new tokens behind each other, on the model's device.

    Lent by `BatchBuilder.lend`: the next one is written over it.
    """

    seqs: list[Sequence]
    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    metadata: AttentionMetadata
    #: Where each sequence's tokens begin, and after the last one the end.
    starts: list[int]
    #: Places in `seqs` of those whose last token is in the batch.
    sampled: list[int]
    #: int64 [T]: see `BatchLayout`. None if nothing is fed on the device.
    fed_rows: torch.Tensor | None
    #: int64, ascending: where among the model's results those are that tokens are chosen from, of
    #: each sequence in `sampled` its last token's, and its drafts'; None if they are all of them.
    logits_at: torch.Tensor | None
    #: int64 [len(sampled)]
    sampled_rows: torch.Tensor
    #: Tokens and sequences at the end that are padding.
    num_padding: int


class BatchBuilder:
    """Keeps a row of block ids per running sequence, and packs steps from them."""

    #: Whether the model is to return the hidden states of all tokens in every step.
    keeps_hidden = False

    def __init__(
        self,
        buffers: StepBuffers,
        *,
        max_num_seqs: int,
        max_blocks_per_seq: int,
        block_size: int,
        scratch_block: int | None = None,
    ) -> None:
        """`scratch_block` is what padding reads and writes; without it nothing can be padded."""
        self._buffers = buffers
        self._block_size = block_size
        self._scratch_block = scratch_block
        self._tables = np.zeros((max_num_seqs, max_blocks_per_seq), dtype=np.int32)
        #: Of each row: whose it is.
        self._owners: list[Sequence | None] = [None] * max_num_seqs
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._is_lent = False

    @contextmanager
    def lend(
        self, num_new_tokens: Mapping[Sequence, int], *, pad_to: int | None = None
    ) -> Iterator[Batch]:
        """Lay out `num_new_tokens` of each sequence after those that are computed or in flight.

        `pad_to` adds sequences of one token, up to that many, that nobody reads; every sequence
        must have one new token then, and the block tables get their full width.

        The batch must not be used behind the context. On a device that computes in the order of
        its stream, what was launched within it may still run. Raises InternalError while another
        batch is lent.
        """
        if self._is_lent:
            raise InternalError("a step is laid out while another one is being launched")
        self._is_lent = True
        try:
            yield self._build(num_new_tokens, pad_to)
        finally:
            self._is_lent = False

    def _build(self, num_new_tokens: Mapping[Sequence, int], pad_to: int | None) -> Batch:
        seqs, query_lens = list(num_new_tokens), list(num_new_tokens.values())
        rows, firsts, width = self._rows(seqs)
        num_seqs = pad_to or len(seqs)
        num_padding = num_seqs - len(seqs)
        num_tokens = sum(query_lens) + num_padding
        if pad_to is not None:
            width = self._tables.shape[1]
            if num_tokens != num_seqs or num_padding < 0 or self._scratch_block is None:
                raise InternalError(f"{num_tokens} tokens cannot be padded to {pad_to}")
        packed = self._buffers.take(BatchLayout(num_tokens, num_seqs, width))
        at = packed.arrays
        lens = np.array(query_lens, dtype=np.int32)
        at["query_start_loc"][0] = 0
        np.cumsum(lens, out=at["query_start_loc"][1 : len(seqs) + 1])
        starts = at["query_start_loc"][: len(seqs) + 1].tolist()
        self._place_tokens(
            packed, np.array(rows, np.int64), np.array(firsts, np.int64), lens, starts
        )
        num_fed = fill_token_ids(packed, seqs, query_lens, firsts, starts)
        sampled = [
            i
            for i, (seq, first, num) in enumerate(zip(seqs, firsts, query_lens, strict=True))
            if first + num >= len(seq.token_ids) + seq.num_unknown_tokens
        ]
        places = logit_places(seqs, sampled, starts)
        every = len(places) == num_tokens - num_padding
        at["sampled_rows"][: len(sampled)] = [rows[i] for i in sampled]
        if not every:
            at["logits_at"][: len(places)] = places
        seq_lens = [first + num for first, num in zip(firsts, query_lens, strict=True)]
        at["seq_lens"][: len(seqs)] = seq_lens
        if num_padding:
            self._pad(packed, len(seqs), num_padding)
        return self._batch(
            packed,
            seqs,
            sampled,
            starts,
            query_lens + [1] * num_padding,
            seq_lens + [1] * num_padding,
            has_fed=num_fed > 0,
            num_logits=None if every else len(places),
        )

    def padding(self, size: int) -> Batch:
        """A batch of `size` sequences whose results are not read.

        What is recorded with it reads the same addresses again, whatever lies there then.
        """
        with self.lend({}, pad_to=size) as batch:
            return batch

    def _batch(
        self,
        packed: PackedStep,
        seqs: list[Sequence],
        sampled: list[int],
        starts: list[int],
        query_lens: list[int],
        seq_lens: list[int],
        *,
        has_fed: bool,
        num_logits: int | None,
    ) -> Batch:
        on = self._buffers.upload(packed)
        last = None if num_logits is None else on["logits_at"][:num_logits]
        keeps_all = self.keeps_hidden or any(seq.prompt_logprobs is not None for seq in seqs)
        return Batch(
            seqs=seqs,
            token_ids=on["token_ids"],
            positions=on["positions"],
            metadata=AttentionMetadata(
                query_start_loc=on["query_start_loc"],
                seq_lens=on["seq_lens"],
                block_tables=on["block_tables"],
                slot_mapping=on["slots"],
                query_lens_list=query_lens,
                seq_lens_list=seq_lens,
                wanted=None if keeps_all else last,
            ),
            starts=starts,
            sampled=sampled,
            fed_rows=on["fed_rows"] if has_fed else None,
            logits_at=last if keeps_all else None,
            sampled_rows=on["sampled_rows"][: len(sampled)],
            num_padding=len(query_lens) - len(seqs),
        )

    def _rows(self, seqs: list[Sequence]) -> tuple[list[int], list[int], int]:
        """Each sequence's row and first new token, and the length of the longest table."""
        rows, firsts, width = [], [], 1
        owners = self._owners
        for seq in seqs:
            row, table = seq.row, seq.block_table
            if row is None or owners[row] is not seq:
                row = self._take_row(seq)
            num_blocks = len(table)
            if num_blocks != seq.num_tabled_blocks:
                self._tables[row, seq.num_tabled_blocks : num_blocks] = table[
                    seq.num_tabled_blocks :
                ]
                seq.num_tabled_blocks = num_blocks
            width = max(width, num_blocks)
            rows.append(row)
            firsts.append(seq.num_computed_tokens + seq.num_in_flight_tokens)
        return rows, firsts, width

    def _take_row(self, seq: Sequence) -> int:
        if not self._free_rows:
            # Nobody says when a sequence stops running: whoever does not run needs no row.
            for row, owner in enumerate(self._owners):
                if owner is not None and (owner.status is not Status.RUNNING or owner.row != row):
                    self._owners[row] = None
                    self._free_rows.append(row)
        row = self._free_rows.pop()
        self._owners[row] = seq
        seq.num_tabled_blocks = 0
        seq.row = row
        return row

    def _place_tokens(
        self,
        packed: PackedStep,
        rows: NDArray[np.int64],
        firsts: NDArray[np.int64],
        lens: NDArray[np.int32],
        starts: list[int],
    ) -> None:
        """Positions, slots and block tables."""
        num_tokens, width = starts[-1], packed.layout.table_width
        if num_tokens == len(lens):
            positions, row_of = firsts, rows
        else:
            shifts = firsts - np.array(starts[:-1])
            positions = np.arange(num_tokens) + np.repeat(shifts, lens)
            row_of = np.repeat(rows, lens)
        at, block_size = packed.arrays, self._block_size
        at["positions"][:num_tokens] = positions
        blocks = self._tables[row_of, positions // block_size]
        slots = at["slots"][:num_tokens]
        np.multiply(blocks, block_size, out=slots, dtype=np.int64)
        slots += positions % block_size
        np.take(
            self._tables[:, :width],
            rows,
            axis=0,
            out=at["block_tables"].reshape(-1, width)[: len(rows)],
            mode="clip",
        )

    def _pad(self, packed: PackedStep, num_seqs: int, num_padding: int) -> None:
        """Every padding row computes token 0 at position 0 of the scratch block.

        Their slots differ while the block has room, and where two meet they hold the same bytes.
        """
        assert self._scratch_block is not None
        at = packed.arrays
        for name in ("token_ids", "positions"):
            at[name][num_seqs:] = 0
        at["fed_rows"][num_seqs:] = -1
        at["seq_lens"][num_seqs:] = 1
        at["query_start_loc"][num_seqs + 1 :] = np.arange(num_seqs + 1, num_seqs + num_padding + 1)
        offsets = np.arange(num_padding) % self._block_size
        at["slots"][num_seqs:] = self._scratch_block * self._block_size + offsets
        tables = at["block_tables"].reshape(-1, packed.layout.table_width)
        tables[num_seqs:] = self._scratch_block
