"""A tier of whole blocks below the blocks of several ranks, of every kind of group."""

from __future__ import annotations

from contextlib import closing
from itertools import count

import numpy as np
import pytest

from shared.connector.protocol.block_copy import checksum_blocks
from shared.engine.offload.group_copies import GroupCopies
from shared.kv.hand_off import Holder
from shared.kv.layout import KVLayout
from shared.kv.split import KVSplit
from tests.fakes.ranks.arenas import SENTINEL, Arenas, Contents
from tests.unit.kv.test_hand_off import GROUPS

BLOCK_SIZE = 4
NUM_TOKENS = 3 * BLOCK_SIZE
#: Layers by stage of the groups below.
STAGES = {
    "one": ((4, 3, 2, 2),),
    "two": ((2, 2, 1, 1), (2, 1, 1, 1)),
    "a stage with states alone": ((4, 3, 2, 1), (0, 0, 0, 1)),
    "a stage for each kind": ((4, 0, 0, 0), (0, 3, 0, 0), (0, 0, 2, 0), (0, 0, 0, 2)),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("tensor_size", [1, 2, 3, 5])
def test_slots_have_whole_blocks(
    tensor_size: int, stages: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    """Blocks of all groups in one call, in both directions; nothing else is written."""
    layout = KVLayout.of(tuple(GROUPS.values()), block_size=BLOCK_SIZE, dtype=dtype)
    split = KVSplit(tensor_size, stages)
    contents, tokens = Contents.of(layout, NUM_TOKENS), [range(NUM_TOKENS)] * layout.num_groups
    numbers = count(5)
    tables = [[next(numbers) for _ in range(3)] for _ in GROUPS]
    #: Full blocks of tokens, and one of states.
    moved = [(b, group) for place in range(3) for group in range(3) for b in [tables[group][place]]]
    blocks, groups = zip(*moved, (tables[3][2], 3), strict=True)
    slots = [(7 * place + 3) % len(blocks) for place in range(len(blocks))]
    whole = Arenas(Holder(layout, KVSplit.of(layout)), 20)
    ranks, filled = (Arenas(Holder(layout, split), 20) for _ in range(2))
    for arenas in (whole, ranks):
        arenas.place(contents, tables, tokens)
    with closing(GroupCopies(layout, split, ranks.memories, len(blocks))) as copies:
        copies.host[:] = SENTINEL
        checksums = copies.to_host(blocks, slots, groups)
        assert np.array_equal(copies.host[slots], whole.memories[0].blocks[list(blocks)])
        assert list(checksums) == list(checksum_blocks([copies.host[slot] for slot in slots]))
        kept = copies.host.copy()
    with closing(GroupCopies(layout, split, filled.memories, len(blocks))) as copies:
        copies.host[:] = kept
        assert list(copies.to_device(slots, blocks, groups)) == list(checksums)
    for got, want in zip(filled.memories, ranks.memories, strict=True):
        assert np.array_equal(got.blocks, want.blocks)
