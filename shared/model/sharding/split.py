"""How a decoder is divided among ranks, as arithmetic of ranges.

Heads, channels and inner numbers are divided in neighbours. With more ranks than heads of keys and
values, neighbouring ranks have the same head. Layers are divided in stages, of so many ranks each.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.kv import split as kv_split


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A rank's place among those that compute a decoder together."""

    #: Among those of its stage.
    rank: int
    #: The number of ranks of a stage.
    size: int
    #: Each rank has some of the experts whole. Otherwise each has a part of every expert.
    expert_parallel: bool = False
    #: Which part of the layers it computes, of how many.
    stage: int = 0
    num_stages: int = 1

    @classmethod
    def of(
        cls, number: int, size: int, num_stages: int = 1, *, expert_parallel: bool = False
    ) -> Split:
        """Return the place of a worker's rank: they are numbered stage after stage."""
        stage, rank = divmod(number, size)
        return cls(
            rank=rank,
            size=size,
            expert_parallel=expert_parallel,
            stage=stage,
            num_stages=num_stages,
        )

    @property
    def number(self) -> int:
        """The rank's number in its worker."""
        return self.stage * self.size + self.rank

    @property
    def num_ranks(self) -> int:
        """The number of the worker's ranks."""
        return self.num_stages * self.size

    @property
    def description(self) -> str:
        """The setting that makes more than one rank, for refusals."""
        if self.num_stages == 1:
            return f"tensor_parallel_size {self.size}"
        return f"pipeline_parallel_size {self.num_stages}"

    @property
    def is_first(self) -> bool:
        """Whether its stage reads tokens."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether its stage chooses tokens."""
        return self.stage == self.num_stages - 1


def share(total: int, split: Split, unit: int = 1) -> range:
    """Return a rank's part of a range, in whole units; the last unit may be shorter.

    Parts of ranks differ by one unit at most. Empty: there are fewer units than ranks.
    """
    count = -(-total // unit)
    first = split.rank * count // split.size
    end = (split.rank + 1) * count // split.size
    return range(first * unit, min(end * unit, total))


def kept_heads(num_heads: int, split: Split) -> range:
    """Return the heads of keys and values that a rank keeps: at least one."""
    return kv_split.kept_heads(num_heads, split.size, split.rank)


def is_counted(num_heads: int, split: Split) -> bool:
    """Return whether a rank is the first of those that keep its heads, as sums over heads need."""
    first = kept_heads(num_heads, split).start
    return kv_split.keepers(num_heads, split.size, first).start == split.rank


def query_heads(num_heads: int, num_kv_heads: int, split: Split) -> range:
    """Return a rank's heads of queries: those of the heads of keys and values that it keeps.

    Ranks that keep the same head divide its queries.
    """
    kept, group = kept_heads(num_kv_heads, split), num_heads // num_kv_heads
    if num_kv_heads >= split.size:
        return range(kept.start * group, kept.stop * group)
    ranks = kv_split.keepers(num_kv_heads, split.size, kept.start)
    own = share(group, Split(rank=split.rank - ranks.start, size=len(ranks)))
    first = kept.start * group
    return range(first + own.start, first + own.stop)


def vocabulary(num_tokens: int, split: Split) -> tuple[range, int]:
    """Return a rank's rows of embedding and head, and how many each rank has room for.

    The last ranks may have fewer rows, or none.
    """
    room = -(-num_tokens // split.size)
    first = min(split.rank * room, num_tokens)
    return range(first, min(first + room, num_tokens)), room
