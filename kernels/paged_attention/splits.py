"""How decode attention is divided among the multiprocessors: the rule, without any tensor.

A sequence's keys are split into parts that are computed beside each other and merged (Dao et al.
2023, Flash-Decoding). Parts are cut to one length for the whole batch, so that a long sequence
among short ones gets many and every batch size gets about as many programs: there is no size at
which splitting stops. The kernel applies the rule itself, to lengths that only the device knows;
its grid bounds the number of parts by the size of the batch alone, so a captured graph can be
replayed with any lengths.
"""

from __future__ import annotations

from typing import NamedTuple

#: Programs that a multiprocessor should get: enough loads in flight to fill its share of the
#: memory's bandwidth, and something to do while another one merges.
_PROGRAMS_PER_PROCESSOR = 2
#: Least keys of a part when there are several: below, writing and merging the partial results
#: costs as much as reading the keys.
MIN_CHUNK = 128


class SplitPlan(NamedTuple):
    """What the launcher passes to the kernel."""

    #: Programs over all key/value heads that the parts are cut for.
    target_programs: int
    #: Programs per key/value head; more parts cannot come out.
    max_parts: int
    #: Partial results per key/value head: sequences of one part write none.
    max_partials: int


def plan_splits(*, num_processors: int, num_seqs: int, num_kv_heads: int) -> SplitPlan:
    """Grid and memory for a batch of `num_seqs` sequences of any lengths."""
    target = _PROGRAMS_PER_PROCESSOR * num_processors
    return SplitPlan(
        target_programs=target,
        # Rounding up adds less than one part per sequence.
        max_parts=target // num_kv_heads + num_seqs,
        # A sequence that is split has more keys than one chunk, hence fewer parts than twice its
        # share of the target.
        max_partials=2 * target // num_kv_heads,
    )


def count_parts(
    seq_lens: list[int], *, target_programs: int, num_kv_heads: int, keys: int
) -> list[int]:
    """Parts of each sequence, as the kernel counts them; `keys` per step of its loop.

    seq_lens: visible keys, so at most the window.
    """
    wanted = -(-sum(seq_lens) * num_kv_heads // target_programs)
    chunk = -(-max(wanted, MIN_CHUNK) // keys) * keys
    return [max(1, -(-length // chunk)) for length in seq_lens]
