"""The tensors of a step."""

from __future__ import annotations

import torch

from shared.engine.batch import build_batch
from shared.engine.sequence import Sequence
from tests.fakes.engines import make_request


def make_sequence(prompt: range, blocks: list[int], num_computed: int) -> Sequence:
    seq = Sequence(make_request("a", prompt), arrival=0, root_hash=bytes(32))
    seq.block_table.extend(blocks)
    seq.num_computed_tokens = num_computed
    return seq


def test_layout_of_a_mixed_batch() -> None:
    decoding = make_sequence(range(50, 59), [7, 2, 9], 8)
    chunk = make_sequence(range(20, 32), [4, 1, 5], 3)
    batch = build_batch({decoding: 1, chunk: 6}, block_size=4, device=torch.device("cpu"))
    assert batch.token_ids.tolist() == [58, *range(23, 29)]
    assert batch.positions.tolist() == [8, *range(3, 9)]
    assert batch.starts == [0, 1, 7]
    metadata = batch.metadata
    assert metadata.slot_mapping.tolist() == [36, 19, 4, 5, 6, 7, 20]
    assert metadata.query_start_loc.tolist() == [0, 1, 7]
    assert metadata.seq_lens.tolist() == metadata.seq_lens_list == [9, 9]
    assert metadata.query_lens_list == [1, 6]
    assert metadata.block_tables.tolist() == [[7, 2, 9], [4, 1, 5]]
    assert metadata.block_tables.dtype is metadata.seq_lens.dtype is torch.int32
    assert batch.token_ids.dtype is metadata.slot_mapping.dtype is torch.int64


def test_slots_beyond_32_bits() -> None:
    seq = make_sequence(range(1, 2), [2**30], 0)
    batch = build_batch({seq: 1}, block_size=16, device=torch.device("cpu"))
    assert batch.metadata.slot_mapping.tolist() == [2**34]
