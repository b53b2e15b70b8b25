"""Finds the blocks of a prefix, and keeps found ones in place while a peer reads them."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.kv.block_pool import BlockPool


class PrefixCache:
    """The view of a `BlockPool` by content. Turned off, it finds nothing and remembers nothing."""

    def __init__(self, pool: BlockPool, *, enabled: bool = True) -> None:
        self._pool = pool
        self._enabled = enabled
        self._pins: dict[int, list[int]] = {}
        self._pin_ids = count(1)

    @property
    def enabled(self) -> bool:
        """Whether anything can be found at all."""
        return self._enabled

    def pinned(self) -> Counter[int]:
        """Pinned blocks, and how many pins each has."""
        return Counter(block for blocks in self._pins.values() for block in blocks)

    def match(self, block_hashes: Iterable[bytes]) -> list[int]:
        """Blocks that hold the leading hashes, up to the first that is missing.

        They are not acquired: they stay valid until something is allocated.
        """
        blocks: list[int] = []
        if self._enabled:
            for block_hash in block_hashes:
                block = self._pool.find(block_hash)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def publish(self, blocks: Sequence[int], block_hashes: Sequence[bytes]) -> None:
        """The bytes of these blocks are final."""
        if self._enabled:
            for block, block_hash in zip(blocks, block_hashes, strict=True):
                self._pool.publish(block, block_hash)

    def pin(self, block_hashes: Iterable[bytes]) -> tuple[int, list[int]]:
        """`match`, and keep the blocks until `unpin`."""
        blocks = self.match(block_hashes)
        self._pool.acquire(blocks)
        pin_id = next(self._pin_ids)
        self._pins[pin_id] = blocks
        return pin_id, list(blocks)

    def reserve(self, num_blocks: int, *, num_spare_blocks: int) -> tuple[int, list[int]] | None:
        """Blocks for content that somebody else will write, pinned; None if there is no room.

        At least `num_spare_blocks` stay free. What `publish_reserved` was not told of is blank
        again after `unpin`, which must follow; before that, nobody may write to it any more.
        """
        if not self._enabled or num_blocks + num_spare_blocks > self._pool.num_free:
            return None
        blocks = self._pool.allocate(num_blocks)
        pin_id = next(self._pin_ids)
        self._pins[pin_id] = blocks
        return pin_id, list(blocks)

    def publish_reserved(self, pin_id: int, block_hashes: Sequence[bytes]) -> None:
        """The bytes of a reservation's leading blocks are final and verified."""
        self.publish(self._pins[pin_id][: len(block_hashes)], block_hashes)

    def unpin(self, pin_id: int) -> None:
        """Give a pin back, exactly once."""
        blocks = self._pins.pop(pin_id, None)
        if blocks is None:
            raise InternalError(f"pin {pin_id} is unknown or was given back already")
        self._pool.release(blocks)
