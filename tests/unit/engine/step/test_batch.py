"""The tensors of a step."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
import torch

from shared.engine.pipeline.planner import StepPlanner
from shared.engine.sequence.sequence import Sequence, Status
from shared.engine.step.batch.buffers import BatchLayout, HostStepBuffers, StagedStepBuffers
from shared.engine.step.batch.builder import BatchBuilder
from shared.errors import InternalError
from shared.kv.identity import KVIdentity
from tests.fakes.engine.engines import make_request

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from shared.engine.step.batch.batch import Batch
    from shared.engine.step.batch.buffers import StepBuffers

CPU = torch.device("cpu")
NUM_BYTES = 1 << 14


def make_sequence(prompt: range, blocks: list[int], num_computed: int) -> Sequence:
    seq = Sequence(make_request("a", prompt), arrival=0, identity=KVIdentity(bytes(32)))
    seq.tables[0].extend(blocks)
    seq.num_computed_tokens = num_computed
    seq.status = Status.RUNNING
    return seq


class Builder:
    """A batch builder that is told by plans."""

    def __init__(self, buffers: StepBuffers, beside: StepBuffers | None = None) -> None:
        self.planner = StepPlanner(max_num_seqs=4, vocab_size=100)
        self.batches = BatchBuilder(
            buffers,
            max_num_seqs=4,
            max_blocks_per_seq=4,
            block_size=4,
            scratch_block=99,
            beside=beside,
        )

    def lend(
        self, num_new_tokens: dict[Sequence, int], **fields: int
    ) -> AbstractContextManager[Batch]:
        return self.batches.lend(self.planner.plan(num_new_tokens), **fields)

    def build(self, num_new_tokens: dict[Sequence, int], **fields: int) -> Batch:
        """A batch to look at until the next one."""
        with self.lend(num_new_tokens, **fields) as batch:
            return batch


@pytest.fixture(params=["host", "staged"])
def builder(request: pytest.FixtureRequest) -> Builder:
    staged = request.param == "staged"
    return Builder(StagedStepBuffers(NUM_BYTES, CPU) if staged else HostStepBuffers(NUM_BYTES))


def test_no_step_is_laid_out_over_one_that_is_in_use(builder: Builder) -> None:
    seq = make_sequence(range(5), [1, 2], 4)
    with builder.lend({seq: 1}) as batch:
        before = facts(batch)
        with pytest.raises(InternalError, match="while another one"), builder.lend({seq: 1}):
            pass
        with pytest.raises(InternalError, match="while another one"):
            builder.batches.padding(2)
        assert facts(batch) == before
    with pytest.raises(RuntimeError), builder.lend({seq: 1}):
        raise RuntimeError("the step failed")
    assert facts(builder.build({seq: 1})) == before


def facts(batch: Batch) -> dict[str, list]:
    metadata = batch.metadata
    return {
        "tokens": batch.token_ids.tolist(),
        "positions": batch.positions.tolist(),
        "slots": metadata.slot_mapping.tolist(),
        "starts": metadata.query_start_loc.tolist(),
        "lens": metadata.seq_lens.tolist(),
        "tables": metadata.block_tables.tolist(),
    }


def test_layout_of_a_mixed_batch(builder: Builder) -> None:
    decoding = make_sequence(range(50, 59), [7, 2, 9], 8)
    chunk = make_sequence(range(20, 32), [4, 1, 5], 3)
    batch = builder.build({decoding: 1, chunk: 6})
    assert facts(batch) == {
        "tokens": [58, *range(23, 29)],
        "positions": [8, *range(3, 9)],
        "slots": [36, 19, 4, 5, 6, 7, 20],
        "starts": [0, 1, 7],
        "lens": [9, 9],
        "tables": [[7, 2, 9], [4, 1, 5]],
    }
    assert batch.starts == [0, 1, 7]
    assert batch.metadata.seq_lens_list == [9, 9]
    assert batch.metadata.query_lens_list == [1, 6]
    assert batch.plan.sampled == [0]  # the chunk does not reach its last token
    assert batch.sampled_rows.tolist() == [batch.plan.rows[0]]
    assert batch.metadata.wanted is not None
    assert batch.metadata.wanted.tolist() == [0]
    assert batch.logits_at is None
    assert batch.metadata.block_tables.dtype is batch.metadata.seq_lens.dtype is torch.int32
    assert batch.token_ids.dtype is batch.metadata.slot_mapping.dtype is torch.int64


class Two:
    """A builder that may go on with its last batch, and one that lays every step out anew."""

    def __init__(self) -> None:
        self._kept = Builder(HostStepBuffers(NUM_BYTES))
        self._anew = Builder(StagedStepBuffers(NUM_BYTES, CPU))
        self._blocks = count(20)
        self._last: Batch | None = None

    def step(self, *pairs: tuple[Sequence, Sequence]) -> bool:
        """Compute a token of each sequence; return whether the last batch was gone on with.

        pairs: the sequences, one for each builder.
        """
        kept = self._kept.build({own: 1 for own, _ in pairs})
        anew = self._anew.build({other: 1 for _, other in pairs})
        assert facts(kept) == facts(anew)
        assert kept.starts == anew.starts
        assert kept.plan.sampled == anew.plan.sampled
        assert kept.metadata.seq_lens_list == anew.metadata.seq_lens_list
        assert kept.metadata.query_lens_list == anew.metadata.query_lens_list
        assert kept.metadata.wanted is anew.metadata.wanted is None
        for pair in pairs:
            block = next(self._blocks)
            for seq in pair:
                seq.num_computed_tokens += 1
                seq.append_token(seq.num_tokens)
                if seq.num_tokens > 4 * len(seq.tables[0]):
                    seq.new_places.append((0, len(seq.tables[0])))
                    seq.tables[0].append(block)
        self._last, last = kept, self._last
        return kept is last


def make_pair(prompt: range, blocks: list[int]) -> tuple[Sequence, Sequence]:
    one, other = (make_sequence(prompt, blocks, len(prompt) - 1) for _ in range(2))
    return one, other


def test_the_next_tokens_of_the_same_sequences_go_into_the_same_batch() -> None:
    two, long, short = Two(), make_pair(range(50, 57), [7, 2]), make_pair(range(20, 22), [4])
    assert not two.step(long, short)
    assert two.step(long, short)
    # The long one's third block is behind the tables, the short one's second is not.
    assert not two.step(long, short)
    assert two.step(long, short)
    assert short[0].num_blocks == 2
    assert two.step(long, short)
    assert not two.step(short, long)
    assert not two.step(short)
    other = make_pair(range(30, 34), [6])
    assert not two.step(other, short)
    assert two.step(other, short)


def test_a_batch_is_not_gone_on_with_behind_another_step() -> None:
    seq = make_sequence(range(50, 59), [7, 2, 9, 1], 5)
    builder = Builder(HostStepBuffers(NUM_BYTES))
    first = builder.build({seq: 4})
    seq.num_computed_tokens = 9
    seq.append_token(60)
    decoding = builder.build({seq: 1})
    assert decoding is not first
    chunk = make_sequence(range(20, 32), [4, 1, 5], 3)
    seq.num_computed_tokens = 10
    seq.append_token(61)
    assert builder.build({seq: 1, chunk: 6}) is not decoding
    seq.num_computed_tokens = 11
    seq.append_token(62)
    last = builder.build({seq: 1})
    assert last is not decoding
    assert facts(last)["tables"] == [[7, 2, 9]]
    builder.batches.keeps_hidden = True
    assert builder.build({seq: 1}) is not last


def test_a_row_that_is_taken_over_beside_a_batch_brings_its_blocks_to_the_next_one() -> None:
    builder = Builder(HostStepBuffers(NUM_BYTES), HostStepBuffers(NUM_BYTES))
    builder.planner = StepPlanner(max_num_seqs=1, vocab_size=100)
    ended = make_sequence(range(50, 56), [7, 2], 5)
    first = builder.build({ended: 1})
    ended.status = Status.ENDED
    seq = make_sequence(range(20, 26), [4, 1], 0)
    builder.build({seq: 5}, beside=True)
    seq.num_computed_tokens = 5
    batch = builder.build({seq: 1})
    assert batch.plan.rows == first.plan.rows
    assert facts(batch)["tables"] == [[4, 1]]


def test_the_end_of_a_prompt_is_sampled_where_it_stands(builder: Builder) -> None:
    batch = builder.build(
        {
            make_sequence(range(9), [1, 2, 3], 3): 2,
            make_sequence(range(20, 26), [4, 5], 2): 4,
            make_sequence(range(5), [6, 7], 4): 1,
        },
    )
    assert batch.plan.sampled == [1, 2]
    assert batch.metadata.wanted is not None
    assert batch.metadata.wanted.tolist() == [5, 6]


def test_scoring_a_prompt_takes_all_hidden_states(builder: Builder) -> None:
    scored = make_sequence(range(6), [4, 5], 2)
    scored.prompt_logprobs = [None]
    batch = builder.build({scored: 4, make_sequence(range(5), [6, 7], 4): 1})
    assert batch.metadata.wanted is None
    assert batch.logits_at is not None
    assert batch.logits_at.tolist() == [3, 4]


def test_slots_beyond_32_bits(builder: Builder) -> None:
    batch = builder.build({make_sequence(range(1, 2), [2**29], 0): 1})
    assert batch.metadata.slot_mapping.tolist() == [2**31]


def test_every_part_is_aligned() -> None:
    layout = BatchLayout(num_tokens=7, num_seqs=3, table_width=5)
    starts = [offset for offset, _, _ in layout.parts.values()]
    ends = [offset + dtype.itemsize * num for offset, dtype, num in layout.parts.values()]
    assert all(start % 16 == 0 for start in starts)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert layout.num_bytes == ends[-1]


def test_a_growing_table_is_followed(builder: Builder) -> None:
    seq = make_sequence(range(9), [7, 2, 9], 8)
    builder.build({seq: 1})
    seq.token_ids.extend(range(9, 13))
    seq.num_computed_tokens = 12
    seq.tables[0].append(5)
    seq.new_places.append((0, 3))
    assert builder.build({seq: 1}).metadata.block_tables.tolist() == [[7, 2, 9, 5]]


def test_a_preempted_sequence_comes_back_with_other_blocks(builder: Builder) -> None:
    seq = make_sequence(range(9), [7, 2, 9], 8)
    builder.build({seq: 1})
    seq.forget_progress()
    del seq.tables[0][:]
    seq.tables[0].extend([1, 3, 4])
    seq.num_computed_tokens = 8
    seq.status = Status.RUNNING
    assert builder.build({seq: 1}).metadata.block_tables.tolist() == [[1, 3, 4]]


def test_rows_of_the_ended_are_used_again(builder: Builder) -> None:
    for first in range(30):
        seqs = [make_sequence(range(i, i + 6), [first, i], 5) for i in range(4)]
        batch = builder.build(dict.fromkeys(seqs, 1))
        assert batch.metadata.block_tables.tolist() == [[first, i] for i in range(4)]
        for seq in seqs:
            seq.status = Status.ENDED


def test_a_token_that_the_host_does_not_know_is_fed(builder: Builder) -> None:
    known = make_sequence(range(5), [1, 2], 4)
    unknown = make_sequence(range(30, 35), [3, 4], 4)
    builder.build({known: 1, unknown: 1})
    unknown.num_in_flight_tokens = unknown.num_unknown_tokens = 1
    chunk = make_sequence(range(50, 56), [5, 6], 0)
    batch = builder.build({known: 1, unknown: 1, chunk: 3})
    assert batch.fed_rows is not None
    assert batch.fed_rows.tolist() == [-1, unknown.row, -1, -1, -1]
    assert batch.positions.tolist() == [4, 5, 0, 1, 2]
    assert batch.plan.sampled == [0, 1]
    assert batch.token_ids.tolist()[0] == 4
    assert builder.build({known: 1}).fed_rows is None


def test_padding_touches_the_scratch_block_only(builder: Builder) -> None:
    seq = make_sequence(range(5), [1, 2], 4)
    batch = builder.build({seq: 1}, pad_to=3)
    assert facts(batch) == {
        "tokens": [4, 0, 0],
        "positions": [4, 0, 0],
        "slots": [8, 396, 397],
        "starts": [0, 1, 2, 3],
        "lens": [5, 1, 1],
        "tables": [[1, 2, 0, 0], [99] * 4, [99] * 4],
    }
    assert (batch.num_padding, batch.plan.sampled, batch.logits_at) == (2, [0], None)
    assert batch.metadata.query_lens_list == [1, 1, 1]
    assert builder.batches.padding(2).metadata.slot_mapping.tolist() == [396, 397]


def test_only_decoding_steps_can_be_padded(builder: Builder) -> None:
    with pytest.raises(InternalError):
        builder.build({make_sequence(range(5), [1, 2], 3): 2}, pad_to=4)


def test_equal_steps_have_equal_addresses() -> None:
    builder = Builder(StagedStepBuffers(NUM_BYTES, CPU))
    recorded = builder.batches.padding(3)
    for _ in range(3):
        batch = builder.build({make_sequence(range(5), [1, 2], 4): 1}, pad_to=3)
        assert batch.token_ids.data_ptr() == recorded.token_ids.data_ptr()
        tables = (batch.metadata.block_tables, recorded.metadata.block_tables)
        assert tables[0].data_ptr() == tables[1].data_ptr()
        assert recorded.token_ids.tolist() == [4, 0, 0]
