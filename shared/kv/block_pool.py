"""Reference counts of KV blocks, and the free blocks whose content a lookup can still find.

It assigns block ids; it never sees the blocks' bytes, nor the requests that own them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from shared.errors import InternalError, UnavailableError
from shared.kv.change_log import ChangeLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed number of blocks, each with a reference count and, when its bytes are final, a hash.

    Free blocks without a hash are reused first, then the least recently used. A hash stays until
    its block is reused: freeing costs nothing, and a later hit takes the block back. All operations
    on one block are O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.changes = ChangeLog()
        #: Blocks from this one on were never assigned.
        self.num_touched = 0
        self._refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        #: Free blocks that no lookup finds; the last is assigned next.
        self._blank = list(range(num_blocks - 1, -1, -1))
        #: Free blocks that a lookup can still find, least recently used first.
        self._evictable: OrderedDict[int, None] = OrderedDict()
        #: By hash: the blocks with this content, in the order in which they got it.
        self._copies: dict[bytes, dict[int, None]] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that `allocate` can assign."""
        return len(self._blank) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Number of free blocks that a lookup can still find."""
        return len(self._evictable)

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` are free: `acquire` would take that number of free blocks."""
        return sum(1 for block in blocks if not self._refs[block])

    def find(self, block_hash: bytes) -> int | None:
        """Return a block with this content, in use or free; None if there is none."""
        copies = self._copies.get(block_hash)
        return None if copies is None else next(iter(copies))

    def allocate(self, num_blocks: int) -> list[int]:
        """Take blocks for new content; their old hashes are dropped. The caller checks `num_free`.

        Raises:
            InternalError: too few are free; none was taken.
        """
        if num_blocks > self.num_free:
            raise InternalError(f"{num_blocks} blocks wanted, {self.num_free} free")
        return [self._take_one() for _ in range(num_blocks)]

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`, which a lookup found. Other references stay."""
        for block in blocks:
            if not self._refs[block]:
                del self._evictable[block]
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one reference from each of `blocks`, given in the order of their sequence.

        The tail is freed first, so it is reused first: a prefix is more useful than the blocks
        after it.
        """
        for block in reversed(blocks):
            if not self._refs[block]:
                raise InternalError(f"block {block} was released more often than acquired")
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._hashes[block] is None:
                self._blank.append(block)
            else:
                self._evictable[block] = None

    def publish(self, block: int, block_hash: bytes) -> None:
        """Let lookups find a block in use whose bytes are final. Once per allocation."""
        if not self._refs[block] or self._hashes[block] is not None:
            raise InternalError(f"block {block} is free or was published already")
        self._hashes[block] = block_hash
        copies = self._copies.setdefault(block_hash, {})
        if not copies:
            self.changes.stored(block_hash)
        copies[block] = None

    def hashes(self) -> list[bytes]:
        """Return every hash that a lookup finds, once."""
        return list(self._copies)

    def forget_all(self) -> int:
        """Drop every hash; return how many blocks had one.

        Raises:
            UnavailableError: a block is in use; nothing was dropped.
        """
        if self.num_free < self.num_blocks:
            num_used = self.num_blocks - self.num_free
            raise UnavailableError(f"{num_used} of {self.num_blocks} KV blocks are in use")
        num_forgotten = len(self._evictable)
        for block in self._evictable:
            self._hashes[block] = None
        self._blank.extend(self._evictable)
        self._evictable.clear()
        self._copies.clear()
        self.changes.cleared()
        return num_forgotten

    def check_integrity(self) -> None:
        """Check every count against the blocks.

        Raises:
            InternalError: two of them disagree.
        """
        free = Counter([*self._blank, *self._evictable])
        unused = {block for block, refs in enumerate(self._refs) if refs == 0}
        _check(free == Counter(unused), "free lists and reference counts disagree")
        _check(min(self._refs, default=0) >= 0, "a reference count is negative")
        hashed = {block for block, value in enumerate(self._hashes) if value is not None}
        _check(not hashed & set(self._blank), "a blank block has a hash")
        _check(set(self._evictable) <= hashed, "an evictable block has no hash")
        pairs = {(block, key) for key, blocks in self._copies.items() for block in blocks}
        _check(pairs == {(b, self._hashes[b]) for b in hashed}, "the hash index is wrong")
        _check(all(self._copies.values()), "the hash index has an empty entry")

    def check_references(self, expected: Counter[int]) -> None:
        """Check that exactly these blocks are in use, with these numbers of references.

        Raises:
            InternalError: they are not.
        """
        actual = Counter({block: refs for block, refs in enumerate(self._refs) if refs})
        _check(actual == expected, f"references are {actual}, but {expected} are accounted for")

    def _take_one(self) -> int:
        if self._blank:
            block = self._blank.pop()
            self.num_touched = max(self.num_touched, block + 1)
        else:
            block, _ = self._evictable.popitem(last=False)
            self._forget(block)
        self._refs[block] = 1
        return block

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            raise InternalError(f"evictable block {block} has no hash")
        self._hashes[block] = None
        copies = self._copies[block_hash]
        del copies[block]
        if not copies:
            del self._copies[block_hash]
            self.changes.removed(block_hash)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InternalError(f"block pool: {message}")
