"""The division of decode attention: enough programs for every batch, and no part too small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.paged_attention.splits import MIN_CHUNK, count_parts, plan_splits

KEYS = 64
SEQ_LENS = st.lists(st.integers(0, 131_072), min_size=1, max_size=300)
KV_HEADS = st.sampled_from((1, 2, 4, 5, 8, 16, 32))
PROCESSORS = st.integers(1, 200)


def parts_of(seq_lens: list[int], num_processors: int, num_kv_heads: int) -> list[int]:
    plan = plan_splits(
        num_processors=num_processors, num_seqs=len(seq_lens), num_kv_heads=num_kv_heads
    )
    return count_parts(
        seq_lens, target_programs=plan.target_programs, num_kv_heads=num_kv_heads, keys=KEYS
    )


@given(SEQ_LENS, PROCESSORS, KV_HEADS)
def test_grid_and_memory_hold_every_part(
    seq_lens: list[int], num_processors: int, num_kv_heads: int
) -> None:
    parts = parts_of(seq_lens, num_processors, num_kv_heads)
    plan = plan_splits(
        num_processors=num_processors, num_seqs=len(seq_lens), num_kv_heads=num_kv_heads
    )
    assert sum(parts) <= plan.max_parts
    assert sum(num for num in parts if num > 1) <= plan.max_partials


@given(SEQ_LENS, PROCESSORS, KV_HEADS)
def test_every_multiprocessor_has_work_unless_the_parts_are_as_small_as_may_be(
    seq_lens: list[int], num_processors: int, num_kv_heads: int
) -> None:
    parts = parts_of(seq_lens, num_processors, num_kv_heads)
    whole_chunks = sum(length // (MIN_CHUNK + KEYS) for length in seq_lens)
    assert sum(parts) * num_kv_heads >= min(num_processors, whole_chunks * num_kv_heads)


@given(SEQ_LENS, PROCESSORS, KV_HEADS)
def test_no_part_is_smaller_than_half_the_least_chunk(
    seq_lens: list[int], num_processors: int, num_kv_heads: int
) -> None:
    parts = parts_of(seq_lens, num_processors, num_kv_heads)
    for length, num in zip(seq_lens, parts, strict=True):
        # One chunk more than fits is divided evenly, so by two at worst.
        assert num == 1 or length / num > MIN_CHUNK / 2


@given(st.integers(1, 131_072), PROCESSORS, KV_HEADS)
def test_more_sequences_never_leave_fewer_programs_than_a_wave(
    length: int, num_processors: int, num_kv_heads: int
) -> None:
    """No cliff: over batch sizes, all of one length, the programs stay at a wave or above."""
    least = min(num_processors, num_kv_heads * max(1, length // (MIN_CHUNK + KEYS)))
    for num_seqs in (1, 2, 3, 5, 8, 11, 12, 13, 16, 24, 31, 32, 33, 64, 128, 256):
        parts = parts_of([length] * num_seqs, num_processors, num_kv_heads)
        assert sum(parts) * num_kv_heads >= least


@given(SEQ_LENS, st.integers(0, 1000), st.integers(0, 100_000), PROCESSORS, KV_HEADS)
def test_a_longer_sequence_does_not_get_fewer_parts_than_a_shorter_one(
    seq_lens: list[int], index: int, more: int, num_processors: int, num_kv_heads: int
) -> None:
    seq_lens = [*seq_lens, seq_lens[index % len(seq_lens)] + more]
    parts = parts_of(seq_lens, num_processors, num_kv_heads)
    assert parts[-1] >= parts[index % (len(seq_lens) - 1)]


@pytest.mark.parametrize("num_seqs", [1, 4, 12, 16, 64])
def test_one_long_sequence_among_short_ones_is_divided(num_seqs: int) -> None:
    """An H200 and Llama 3 8B: the long one alone would keep 8 of 132 multiprocessors busy."""
    parts = parts_of([32_768] + [16] * (num_seqs - 1), 132, 8)
    assert parts[0] * 8 >= 132
    assert parts[1:] == [1] * (num_seqs - 1)
