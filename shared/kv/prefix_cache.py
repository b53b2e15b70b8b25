"""Lookup of a prefix's blocks in all groups, and pins while a peer reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, count
from types import MappingProxyType
from typing import TYPE_CHECKING

from shared.errors import InternalError
from shared.kv.group_rules import FullRule, StateRule, longest_prefix, needed_blocks
from shared.kv.identity import block_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.kv.block_pool import BlockPool
    from shared.kv.group_rules import GroupRule
    from shared.kv.layout import KVLayout

_NOTHING: Mapping[bytes, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PrefixBlocks:
    """Blocks of a prefix: by group, those that are needed to go on behind it."""

    #: Blocks of tokens in the prefix, counted from the first one that was asked for.
    num_blocks: int
    #: By group: the blocks that it needs, the prefix's last block last.
    tables: tuple[Sequence[int], ...]
    #: Blocks of tokens that the first group alone has, if others have states; 0 otherwise.
    num_shared: int = 0

    @property
    def blocks(self) -> list[int]:
        """The blocks of all groups, in the order of a transfer."""
        return list(chain.from_iterable(self.tables))


class PrefixCache:
    """The view of a `BlockPool` by content. Turned off, it finds and keeps nothing.

    A prefix is found as far as every group has the blocks that its rule needs. `first_block` is the
    number of blocks before the requested ones: they are available, here or at the requesting peer.
    """

    def __init__(
        self,
        pool: BlockPool,
        rules: Sequence[GroupRule] = (FullRule(),),
        *,
        block_size: int = 1,
        enabled: bool = True,
    ) -> None:
        """Make the view. `rules` are those of the layout's groups."""
        self._pool = pool
        self._rules = tuple(rules)
        self._block_size = block_size
        self._has_states = any(isinstance(rule, StateRule) for rule in self._rules)
        self._enabled = enabled
        self._pins: dict[int, PrefixBlocks] = {}
        self._pin_ids = count(1)

    @classmethod
    def over(cls, pool: BlockPool, layout: KVLayout, *, enabled: bool) -> PrefixCache:
        """Return the view of a pool whose blocks are those of `layout`."""
        return cls(pool, layout.rules, block_size=layout.block_size, enabled=enabled)

    @property
    def enabled(self) -> bool:
        """Whether the cache is turned on."""
        return self._enabled

    @property
    def rules(self) -> tuple[GroupRule, ...]:
        """By group: the blocks that a sequence needs."""
        return self._rules

    @property
    def num_groups(self) -> int:
        """Number of groups: the maximum of the pool's blocks for one block of tokens."""
        return len(self._rules)

    def pinned(self) -> Counter[int]:
        """Return the pinned blocks, and the number of pins of each."""
        return Counter(chain.from_iterable(found.blocks for found in self._pins.values()))

    def match(
        self,
        block_hashes: Sequence[bytes],
        *,
        first_block: int = 0,
        also: Mapping[bytes, int] = _NOTHING,
    ) -> PrefixBlocks:
        """Return the longest prefix that all groups have.

        Its blocks are not acquired: they stay valid until the next allocation. `also`: blocks by
        key that may be used besides those of the pool.
        """
        if not self._enabled:
            return PrefixBlocks(0, tuple([] for _ in self._rules))
        found = [
            _Lookup(self._pool, block_hashes, group, first_block, also) for group in self._groups
        ]
        lookups = [lookup.is_there for lookup in found]
        num = longest_prefix(self._rules, lookups, first_block, first_block + len(block_hashes))
        shared = 0
        if self._has_states:
            end = first_block + len(block_hashes)
            shared = self._rules[0].longest(lookups[0], first_block, end)
        needed = needed_blocks(self._rules, self._block_size, first_block, num)
        tables = tuple(lookup.blocks(blocks) for lookup, blocks in zip(found, needed, strict=True))
        return PrefixBlocks(num - first_block, tables, max(0, shared - first_block))

    def publish(self, blocks: Sequence[int], block_hashes: Sequence[bytes], group: int = 0) -> None:
        """Publish blocks of a group whose bytes are final."""
        if self._enabled:
            for block, block_hash in zip(blocks, block_hashes, strict=True):
                if block >= 0:
                    self._pool.publish(block, block_key(block_hash, group))

    def pin(
        self, block_hashes: Sequence[bytes], *, first_block: int = 0
    ) -> tuple[int, PrefixBlocks]:
        """Do as `match`, and keep the blocks until `unpin`."""
        found = self.match(block_hashes, first_block=first_block)
        self._pool.acquire(found.blocks)
        return self._pin(found), found

    def reserve(
        self, num_blocks: int, *, num_spare_blocks: int, first_block: int = 0
    ) -> tuple[int, PrefixBlocks] | None:
        """Return pinned blocks for content that a peer will write; None if there is no room.

        At least `num_spare_blocks` stay free. Blocks that were not passed to `publish_reserved`
        have no content after `unpin`, which must follow. Writes to the blocks must have ended
        before it.
        """
        end = first_block + num_blocks
        needed = needed_blocks(self._rules, self._block_size, first_block, end)
        sizes = [len(blocks) for blocks in needed]
        if not self._enabled or sum(sizes) + num_spare_blocks > self._pool.num_free:
            return None
        found = PrefixBlocks(num_blocks, tuple(self._pool.allocate(size) for size in sizes))
        return self._pin(found), found

    def publish_reserved(self, pin_id: int, block_hashes: Sequence[bytes]) -> None:
        """Publish a reservation's leading blocks, whose bytes are final and verified."""
        found = self._pins[pin_id]
        for group, table in enumerate(found.tables):
            hashes = block_hashes[found.num_blocks - len(table) :]
            self.publish(table[: len(hashes)], hashes, group)

    def unpin(self, pin_id: int) -> None:
        """Release a pin, exactly once."""
        found = self._pins.pop(pin_id, None)
        if found is None:
            raise InternalError(f"pin {pin_id} is unknown or was given back already")
        for table in found.tables:
            self._pool.release(table)

    @property
    def _groups(self) -> range:
        return range(len(self._rules))

    def _pin(self, found: PrefixBlocks) -> int:
        pin_id = next(self._pin_ids)
        self._pins[pin_id] = found
        return pin_id


class _Lookup:
    """The blocks of one group by their index in the sequence; each is looked up once."""

    def __init__(
        self,
        pool: BlockPool,
        block_hashes: Sequence[bytes],
        group: int,
        first_block: int,
        also: Mapping[bytes, int],
    ) -> None:
        self._pool = pool
        self._hashes = block_hashes
        self._group = group
        self._first = first_block
        self._also = also
        self._found: dict[int, int] = {}

    def is_there(self, place: int) -> bool:
        if place in self._found:
            return True
        key = block_key(self._hashes[place - self._first], self._group)
        block = self._pool.find(key)
        if block is None:
            block = self._also.get(key)
        if block is not None:
            self._found[place] = block
        return block is not None

    def blocks(self, places: range) -> list[int]:
        return [self._found[place] for place in places]
