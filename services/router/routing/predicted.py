"""Blocks that a worker will hold because of a request sent there, until it reports them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.identity import WorkerId

#: A worker reports its blocks well within this time after they are computed.
TTL_S = 5.0
MAX_HASHES = 2**18


@dataclass(slots=True, eq=False)
class Prediction:
    """One request's blocks on one worker."""

    worker: WorkerId
    hashes: Sequence[bytes]
    open: bool = True


class PredictedBlocks:
    """Bounded set of predictions. Each is valid until `ttl_s` after its prompt is computed."""

    def __init__(self, *, ttl_s: float = TTL_S, max_hashes: int = MAX_HASHES) -> None:
        self._ttl_s = ttl_s
        self._max_hashes = max_hashes
        self._num_hashes = 0
        #: Number of predictions by hash. A prediction always has the beginning of its prompt, so a
        #: prefix of a prompt's hashes is in here and the other hashes are not.
        self._counts: dict[WorkerId, Counter[bytes]] = {}
        self._settled: deque[tuple[float, Prediction]] = deque()

    @property
    def num_hashes(self) -> int:
        """Hashes in all predictions together."""
        return self._num_hashes

    def add(self, worker: WorkerId, hashes: Sequence[bytes], now_s: float) -> Prediction | None:
        """Predict the blocks of a prompt sent to `worker`; None without `hashes` or room."""
        self._expire(now_s)
        while self._settled and self._num_hashes + len(hashes) > self._max_hashes:
            self.drop(self._settled.popleft()[1])
        if not hashes or self._num_hashes + len(hashes) > self._max_hashes:
            return None
        self._counts.setdefault(worker, Counter()).update(hashes)
        self._num_hashes += len(hashes)
        return Prediction(worker, hashes)

    def settle(self, prediction: Prediction, now_s: float) -> None:
        """Let the prediction count for `ttl_s` more: the prompt was computed.

        The worker's own report of its blocks takes its place meanwhile.
        """
        self._settled.append((now_s + self._ttl_s, prediction))

    def drop(self, prediction: Prediction) -> None:
        """Remove a prediction. Safe to repeat."""
        if not prediction.open:
            return
        prediction.open = False
        self._num_hashes -= len(prediction.hashes)
        counts = self._counts[prediction.worker]
        for block_hash in prediction.hashes:
            left = counts[block_hash] - 1
            if left:
                counts[block_hash] = left
            else:
                del counts[block_hash]
        if not counts:
            del self._counts[prediction.worker]

    def held(self, worker: WorkerId, hashes: Sequence[bytes], now_s: float) -> int:
        """Return how many of the leading `hashes` the worker will hold."""
        if self._settled:
            self._expire(now_s)
        counts = self._counts.get(worker)
        if counts is None or not hashes or hashes[0] not in counts:
            return 0
        # Binary search: the first hash is held, and held hashes have no gap.
        low, high = 1, len(hashes)
        if hashes[-1] in counts:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if hashes[middle - 1] in counts:
                low = middle
            else:
                high = middle
        return low

    def _expire(self, now_s: float) -> None:
        while self._settled and self._settled[0][0] <= now_s:
            self.drop(self._settled.popleft()[1])
