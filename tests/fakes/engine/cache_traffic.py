"""What an engine does to its block pool, as far as its content goes: any of it, by number."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.kv.block_pool import BlockPool


class PoolTraffic:
    """Sequences with common prefixes come, are computed, end; now and then all is forgotten."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._tables: list[list[int]] = []

    def act(self, seed: int) -> None:
        """Do one thing, the same for the same seed and state."""
        rng = random.Random(seed)
        if self._tables and rng.random() < 0.5:
            self.pool.release(self._tables.pop(rng.randrange(len(self._tables))))
        elif not self._tables and rng.random() < 0.1:
            self.pool.forget_all()
        else:
            self._start(rng)

    def _start(self, rng: random.Random) -> None:
        stem, length = rng.randrange(4), rng.randrange(1, 5)
        names = [hashlib.sha256(f"{stem}-{i}".encode()).digest() for i in range(length)]
        hits = []
        for name in names:
            block = self.pool.find(name)
            if block is None:
                break
            hits.append(block)
        num_new = length - len(hits)
        if num_new + self.pool.num_free_among(hits) > self.pool.num_free:
            return
        self.pool.acquire(hits)
        fresh = self.pool.allocate(num_new)
        for block, name in zip(fresh, names[len(hits) :], strict=True):
            self.pool.publish(block, name)
        self._tables.append(hits + fresh)
