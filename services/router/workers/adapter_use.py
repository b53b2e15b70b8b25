"""One worker's adapters: what it reports, and what requests that were sent to it will make it load.

The second is never out of date: a worker that was sent the first request for an adapter loads it
already, though its report does not say so yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.directory.base import AdapterPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.directory.base import AdapterState, WorkerLoad

#: Expected time to load an adapter before any load was measured.
LOAD_MS_PRIOR = 200.0
#: Share of it for an adapter that is in host memory.
HOST_SHARE = 0.1
#: A worker reports an adapter well within this time after it has loaded it.
REPORT_S = 5.0
#: Expected time for which a request holds its place in the batch, before any was measured.
HOLD_MS_PRIOR = 1000.0
#: Loads that a full memory is expected to cost later, for each that it takes: what was driven out
#: comes back, drives out another one, and others wait behind it.
EVICTED_LOADS = 2.0
#: Weight of one measurement in a mean.
NEWEST_SHARE = 0.2
#: Time to load is remembered for this number of adapters.
MAX_MEASURED = 4096


class LoadTimes:
    """Measured times to load adapters from disk, of all workers of a pool."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[bytes, float] = OrderedDict()
        self._mean_ms = LOAD_MS_PRIOR

    def expected_ms(self, digest: bytes) -> float:
        """Return the expected time of a load: this adapter's, otherwise the mean of all."""
        return self._by_digest.get(digest, self._mean_ms)

    @property
    def mean_ms(self) -> float:
        """Expected time of the load of any adapter."""
        return self._mean_ms

    def observe(self, digest: bytes, ms: float) -> None:
        """Learn from a load."""
        if not self._by_digest:
            self._mean_ms = ms
        self._mean_ms += NEWEST_SHARE * (ms - self._mean_ms)
        known = self._by_digest.pop(digest, ms)
        self._by_digest[digest] = known + NEWEST_SHARE * (ms - known)
        if len(self._by_digest) > MAX_MEASURED:
            self._by_digest.popitem(last=False)


@dataclass(slots=True)
class _Loading:
    """A load that requests to the worker have caused."""

    ready_s: float


class AdapterUse:
    """The adapters of one worker. Times are in milliseconds, moments in seconds of one clock."""

    __slots__ = (
        "_by_digest", "_by_name", "_held", "_hold_ms", "_load_ms", "_loading", "_running",
        "_states", "max_adapters", "max_held", "times",
    )  # fmt: skip

    def __init__(self, times: LoadTimes | None = None) -> None:
        """Start without adapters. `times`: shared by the workers of a pool."""
        self.times = times or LoadTimes()
        #: Most adapters in one of its steps; 0: it serves none.
        self.max_adapters = 0
        #: Most that its memory takes; 0: unknown.
        self.max_held = 0
        #: Digests of those in its memory.
        self._held: Collection[bytes] = ()
        self._states: tuple[AdapterState, ...] = ()
        self._by_name: Mapping[str, AdapterState] = {}
        self._by_digest: Mapping[bytes, AdapterState] = {}
        self._load_ms: dict[bytes, float] = {}
        self._loading: dict[bytes, _Loading] = {}
        self._running: Counter[bytes] = Counter()
        self._hold_ms = HOLD_MS_PRIOR

    def report(self, load: WorkerLoad) -> None:
        """Take the worker's report."""
        self.max_adapters, self.max_held = load.max_adapters, load.max_held_adapters
        if load.adapters == self._states:
            return
        self._states = load.adapters
        self._by_name = {state.adapter.name: state for state in load.adapters}
        by_digest: dict[bytes, AdapterState] = {}
        for state in load.adapters:
            digest = state.adapter.digest
            by_digest[digest] = state
            if state.load_ms and self._load_ms.get(digest) != state.load_ms:
                self.times.observe(digest, state.load_ms)
        self._by_digest = by_digest
        self._held = {
            digest for digest, state in by_digest.items() if state.place is not AdapterPlace.KNOWN
        }
        self._load_ms = {digest: state.load_ms for digest, state in by_digest.items()}

    @property
    def names(self) -> Collection[str]:
        """Names of the adapters that it serves."""
        return self._by_name.keys()

    @property
    def states(self) -> tuple[AdapterState, ...]:
        """Its last report."""
        return self._states

    def named(self, name: str) -> AdapterState | None:
        """Return the state of an adapter that it serves by this name."""
        return self._by_name.get(name)

    def load_ms(self, digest: bytes) -> float:
        """Return the expected time to load the adapter from disk here."""
        return self._load_ms.get(digest) or self.times.expected_ms(digest)

    def wait_ms(self, digest: bytes, now_s: float) -> float:
        """Return the expected time until a request that is sent now could use the adapter."""
        return self._residence_ms(digest, now_s) + self._place_ms(digest)

    def eviction_ms(self, digest: bytes, now_s: float) -> float:
        """Return the time that others lose if this adapter drives one out of a full memory."""
        if not self.max_held or digest in self._held or digest in self._loading:
            return 0.0
        coming = sum(
            each not in self._held and (loading.ready_s > now_s - REPORT_S or each in self._running)
            for each, loading in self._loading.items()
        )
        if len(self._held) + coming < self.max_held:
            return 0.0
        return EVICTED_LOADS * self.times.mean_ms

    def begin(self, digest: bytes, now_s: float) -> None:
        """Note a request with the adapter that is sent to the worker."""
        loading = self._loading.get(digest)
        left_ms = self._residence_ms(digest, now_s)
        if left_ms and (loading is None or loading.ready_s < now_s):
            self._loading[digest] = _Loading(now_s + left_ms / 1000)
        self._running[digest] += 1

    def end(self, digest: bytes, begun_s: float, now_s: float, *, served: bool) -> None:
        """Note the end of a request for which `begin` was called at `begun_s`.

        `served`: it got tokens, so it held a place in a batch.
        """
        self._running[digest] -= 1
        if not self._running[digest]:
            del self._running[digest]
        if served:
            self._hold_ms += NEWEST_SHARE * ((now_s - begun_s) * 1000 - self._hold_ms)

    def _residence_ms(self, digest: bytes, now_s: float) -> float:
        """Return the time until the adapter is beside the model's weights."""
        state = self._by_digest.get(digest)
        if state is not None and state.place is AdapterPlace.DEVICE:
            self._loading.pop(digest, None)
            return 0.0
        whole_ms = self.load_ms(digest)
        if state is not None and state.place is AdapterPlace.HOST:
            whole_ms *= HOST_SHARE
        loading = self._loading.get(digest)
        if loading is not None:
            left_s = loading.ready_s - now_s
            if left_s > -REPORT_S or digest in self._running:
                return max(0.0, min(whole_ms, left_s * 1000))
            del self._loading[digest]
        return whole_ms

    def _place_ms(self, digest: bytes) -> float:
        """Return the time until the batch has a place for another adapter."""
        if digest in self._running or not self.max_adapters:
            return 0.0
        num_over = len(self._running) - self.max_adapters + 1
        return max(0, num_over) * self._hold_ms / self.max_adapters
