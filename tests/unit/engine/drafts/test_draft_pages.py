"""Pages of drafts inside blocks of the pool: none overlap, all come back, none cross a border."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shared.engine.memory.arena import KVArena
from shared.engine.sequence.sequence import Status
from shared.engine.speculation.drafts.memory import DraftMemory
from shared.engine.speculation.drafts.pages import DraftPages
from shared.errors import ConfigError
from shared.kv.layout import KVLayout


@dataclass(eq=False)
class Seq:
    """As much of a sequence as matters here."""

    status: Status = Status.RUNNING


@dataclass
class Blocks:
    """A pool of some blocks."""

    free: list[int]
    taken: set[int] = field(default_factory=set)

    def allocate(self, num_blocks: int) -> list[int] | None:
        if num_blocks > len(self.free):
            return None
        blocks = [self.free.pop() for _ in range(num_blocks)]
        self.taken.update(blocks)
        return blocks

    def release(self, blocks: list[int]) -> None:
        self.taken.difference_update(blocks)
        self.free += blocks


def make(
    draft_layers: int, *, layers: int = 4, heads: int = 2, dim: int = 6, num_blocks: int = 9
) -> tuple[DraftPages, Blocks, torch.Tensor]:
    """A target with 2 heads of 8, and a draft with others."""
    layout = KVLayout.single(
        num_layers=layers, num_kv_heads=2, block_size=8, head_dim=8, dtype="float32"
    )
    blocks = Blocks(list(range(num_blocks)))
    arena = KVArena(layout, num_blocks, device=torch.device("cpu"))
    context: Any = SimpleNamespace(arena=arena, blocks=blocks)
    attention = SimpleNamespace(kv_shape=(2, heads, dim))
    attentions = dict.fromkeys(range(draft_layers), attention)
    spec: Any = SimpleNamespace(kv_groups=(tuple(attentions),), attentions=attentions)
    return DraftPages(context, spec, torch.float32), blocks, arena.groups[0]


@pytest.mark.parametrize(
    ("draft_layers", "heads", "dim"), [(1, 2, 8), (4, 2, 8), (1, 2, 6), (2, 1, 10), (3, 2, 8)]
)
def test_pages_are_in_blocks_that_were_taken_and_in_no_other(
    draft_layers: int, heads: int, dim: int
) -> None:
    pages, blocks, kv_cache = make(draft_layers, heads=heads, dim=dim)
    tables = [array("i"), array("i"), array("i")]
    for num_tokens in (3, 9, 21):
        for table in tables:
            assert pages.try_grow(table, num_tokens)
    assert {len(table) * pages.page_size >= 21 for table in tables} == {True}
    used = [page for table in tables for page in table]
    assert len(used) == len(set(used))
    for page in used:
        pages.kv_cache[page] += 1.0
    assert pages.kv_cache[used].eq(1.0).all()
    written = kv_cache.flatten(1).ne(0).any(1).nonzero().flatten().tolist()
    assert set(written) == blocks.taken
    assert pages.num_blocks == len(blocks.taken)
    for table in tables:
        pages.release(table)
    assert not blocks.taken
    assert pages.num_blocks == 0


def test_a_small_draft_shares_blocks_between_sequences() -> None:
    pages, blocks, _ = make(1, heads=2, dim=8)
    tables = [array("i") for _ in range(4)]
    for table in tables:
        assert pages.try_grow(table, 8)
    assert len(blocks.taken) == 1
    for table in tables[:3]:
        pages.release(table)
    assert len(blocks.taken) == 1
    pages.release(tables[3])
    assert not blocks.taken


def test_nothing_is_taken_where_not_all_can_be() -> None:
    pages, blocks, _ = make(4, dim=8, num_blocks=3)
    table = array("i")
    assert not pages.try_grow(table, 4 * 8)
    assert not table
    assert not blocks.taken
    assert pages.try_grow(table, 3 * 8)


def test_a_draft_larger_than_its_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="a draft must be smaller than its target"):
        make(200, dim=8)


def test_the_largest_give_back_first_and_nobody_begins_before_somebody_ended() -> None:
    pages, blocks, _ = make(4, dim=8)
    memory: DraftMemory[Any] = DraftMemory(pages)
    seqs: list[Any] = [Seq() for _ in range(3)]
    for seq, num_tokens in zip(seqs, (8, 32, 16), strict=True):
        state = memory.add(seq, lambda: SimpleNamespace(table=array("i")))
        assert state is not None
        assert memory.try_grow(seq, state, num_tokens)
    memory.give_back(2)
    assert [memory.get(seq) is None for seq in seqs] == [False, True, False]
    assert len(blocks.taken) == 3
    assert memory.add(seqs[1], lambda: SimpleNamespace(table=array("i"))) is None
    seqs[0].status = Status.WAITING
    memory.forget(seqs[0])
    assert memory.add(seqs[1], lambda: SimpleNamespace(table=array("i"))) is None
    seqs[2].status = Status.ENDED
    memory.forget(seqs[2])
    assert memory.add(seqs[1], lambda: SimpleNamespace(table=array("i"))) is not None
    memory.close()
    assert not blocks.taken
