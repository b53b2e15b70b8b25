"""The rule that divides decode attention among the multiprocessors, without any tensor.

A sequence's keys are split into parts that are computed beside each other and merged (Dao et al.
2023, Flash-Decoding). All parts of a batch have about the same length, so that a long sequence
among short ones gets many parts, and batches of every size get about as many programs. The kernel
applies the rule itself, to lengths that only the device knows. Its grid depends on the size of the
batch alone, so a captured graph can be replayed with any lengths.
"""

from __future__ import annotations

from typing import NamedTuple

#: Programs per multiprocessor: their loads fill its share of the memory's bandwidth, also while one
#: of the programs merges.
_PROGRAMS_PER_PROCESSOR = 2
#: Least keys of a part when a sequence has several parts. With fewer keys, writing and merging the
#: partial results costs as much as reading the keys.
MIN_CHUNK = 128


class SplitPlan(NamedTuple):
    """The numbers that the launcher derives from the size of a batch."""

    #: Programs, over all key/value heads, among which the keys are divided.
    target_programs: int
    #: Programs per key/value head: the largest possible number of parts.
    max_parts: int
    #: Partial results per key/value head. Sequences of one part write none.
    max_partials: int


def plan_splits(*, num_processors: int, num_seqs: int, num_kv_heads: int) -> SplitPlan:
    """Return grid and memory for a batch of `num_seqs` sequences of any lengths."""
    target = _PROGRAMS_PER_PROCESSOR * num_processors
    return SplitPlan(
        target_programs=target,
        # Rounding up adds less than one part per sequence.
        max_parts=target // num_kv_heads + num_seqs,
        # A split sequence has more keys than one chunk, hence fewer parts than twice its share of
        # the target.
        max_partials=2 * target // num_kv_heads,
    )


def count_parts(
    seq_lens: list[int], *, target_programs: int, num_kv_heads: int, keys: int
) -> list[int]:
    """Return the number of parts of each sequence, as the kernel counts them.

    seq_lens: visible keys, so at most the window; keys: those that one step of the loop reads.
    """
    wanted = -(-sum(seq_lens) * num_kv_heads // target_programs)
    chunk = -(-max(wanted, MIN_CHUNK) // keys) * keys
    return [max(1, -(-length // chunk)) for length in seq_lens]
