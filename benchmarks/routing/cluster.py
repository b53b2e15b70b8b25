"""Simulated workers in front of which the real scheduler decides, by a clock that we turn.

A prefill worker computes one prompt after the other, in the order of their coming, in the time
that `ServiceTime` says, and keeps blocks in an LRU cache of fixed size, tails evicted first. What
it holds is looked up when a prompt's turn comes, so a hit may have come or gone since the
decision. One decode worker writes all answers, without limits: these runs are about first tokens.

An adapter that a prefill worker does not have in its memory, which holds a fixed number of them, is
loaded before the prompt is computed, one after the other, while other prompts are computed. Of
those that no prompt waits for, the least used one makes room. Workers report their
adapters at a fixed interval, as by heartbeats.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.routing.block_cache import BlockCache
from benchmarks.routing.traces import BLOCK_SIZE
from services.router.routing.base import RoutingRequest
from services.router.routing.book import Book
from services.router.routing.chooser import WorkerChooser
from services.router.routing.policies.find import find_policy
from services.router.workers.adapter_use import AdapterUse, LoadTimes
from services.router.workers.endpoint import Endpoint
from services.router.workers.timing.profile import WorkerProfile
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad, WorkerRecord
from shared.engine.adapters.recent_uses import RecentUses
from shared.identity import Role, WorkerId
from shared.request.adapter_ref import AdapterRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from benchmarks.routing.traces import Arrival
    from services.router.routing.book import Booking

#: No worker's KV pool is too small in these runs.
PLENTY = 1_000_000
#: Of all workers.
NAMESPACE = "00"


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Milliseconds to compute a prompt. Defaults: 20,000 tokens/s, attention as much at 100,000."""

    each_ms: float = 5.0
    per_token_ms: float = 0.05
    per_pair_ms: float = 1e-6

    def prefill_ms(self, num_tokens: int, num_held: int) -> float:
        """With the first `num_held` tokens there."""
        num_computed = num_tokens - num_held
        num_pairs = num_computed * (num_tokens + num_held) / 2
        return self.each_ms + self.per_token_ms * num_computed + self.per_pair_ms * num_pairs

    def no_cache_s(self, arrivals: Sequence[Arrival]) -> float:
        """Work of all of them if nothing were ever found."""
        return sum(self.prefill_ms(a.num_tokens, 0) for a in arrivals) / 1000


@dataclass(slots=True)
class _Waiting:
    arrival: Arrival
    booking: Booking
    #: Its adapter is in the worker's memory.
    ready: bool = True
    #: Known when its turn has come, told to the router when it is done.
    num_held: int = 0
    took_ms: float = 0.0


class SimWorker:
    """One prefill worker."""

    def __init__(self, endpoint: Endpoint, num_blocks: int, adapters: AdapterMemory) -> None:
        self.endpoint = endpoint
        #: Computed in the order of their coming, but for those that wait for their adapter.
        self.waiting: deque[_Waiting] = deque()
        self.computing: _Waiting | None = None
        self.adapters = adapters
        #: Adapters to load, in order; the first is being loaded.
        self.loads: deque[bytes] = deque()
        self.num_loads = 0
        self.busy_ms = 0.0
        self.num_requests = 0
        self.cache = BlockCache(num_blocks)
        self._held: dict[bytes, None] = {}
        self._uses = RecentUses(adapters.num_adapters)

    def use(self, adapter: bytes) -> bool:
        """Count a prompt with the adapter; return whether it can be computed now."""
        if adapter:
            self._uses.add(adapter)
        return not adapter or adapter in self._held

    def keep(self, adapter: bytes) -> None:
        """Take an adapter that was loaded; it is ready for the prompts that waited for it."""
        self._held[adapter] = None
        for each in self.waiting:
            each.ready = each.ready or each.arrival.adapter == adapter
        needed = {each.arrival.adapter for each in self.waiting}
        if self.computing is not None:
            needed.add(self.computing.arrival.adapter)
        num_over = max(0, len(self._held) - self.adapters.num_adapters)
        victims = [each for each in self._held if each not in needed and each != adapter]
        for victim in sorted(victims, key=self._uses.of)[:num_over]:
            del self._held[victim]

    def load(self) -> WorkerLoad:
        """Return what it reports."""
        return _report(self._held, self.adapters)


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """The memory for adapters of each worker."""

    num_adapters: int = 16
    load_ms: float = 300.0
    #: Of reports to the router.
    report_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave."""

    ttft_ms: list[float]
    num_prompt_tokens: int
    num_held_tokens: int
    #: Of each worker, in the order of their names.
    busy_ms: list[float]
    num_requests: list[int]
    #: Of adapters, on all workers.
    num_loads: int = 0

    @property
    def mean_ms(self) -> float:
        """Mean time to the first token."""
        return sum(self.ttft_ms) / len(self.ttft_ms)

    def percentile_ms(self, share: float) -> float:
        """Nearest rank."""
        return sorted(self.ttft_ms)[min(len(self.ttft_ms) - 1, int(share * len(self.ttft_ms)))]

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found."""
        return self.num_held_tokens / self.num_prompt_tokens

    @property
    def peak_load(self) -> float:
        """The busiest worker's time over the mean."""
        return max(self.busy_ms) / (sum(self.busy_ms) / len(self.busy_ms))


class Simulation:
    """A cluster under one policy. The same arguments give the same result, to the last digit."""

    def __init__(
        self,
        policy: str,
        *,
        num_workers: int,
        num_blocks: int = 2000,
        service: ServiceTime | None = None,
        adapters: AdapterMemory | None = None,
        seed: int = 0,
    ) -> None:
        self._now_s = 0.0
        self._service = service or ServiceTime()
        fleet, times = WorkerProfile(), LoadTimes()
        memory = adapters or AdapterMemory()
        self._workers = [
            SimWorker(_endpoint(f"prefill-{i:03}", Role.PREFILL, fleet, times), num_blocks, memory)
            for i in range(num_workers)
        ]
        self._by_id = {worker.endpoint.record.worker: worker for worker in self._workers}
        self._endpoints = {
            Role.PREFILL: [worker.endpoint for worker in self._workers],
            Role.DECODE: [_endpoint("decode", Role.DECODE, None, times)],
        }
        self._scheduler = WorkerChooser(
            self._endpoints.__getitem__,
            policy=find_policy(policy, random.Random(seed)),
            prefixes=self,
            book=Book(clock=lambda: self._now_s),
        )
        #: What happens then.
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._report_s, self._reported_s = memory.report_s, 0.0
        self._order = itertools.count()
        self._ttft_ms: list[float] = []
        self._num_held_tokens = 0

    def lookup(self, hashes: Sequence[bytes]) -> Mapping[WorkerId, int]:
        """See PrefixLookup: the workers report at once what they store and evict."""
        counts = {id_: worker.cache.num_held(hashes) for id_, worker in self._by_id.items()}
        return {id_: count for id_, count in counts.items() if count}

    def run(
        self, arrivals: Sequence[Arrival], *, advance: Callable[[], None] | None = None
    ) -> Result:
        """Serve all of them; `advance` is called after each."""
        self._give_decode({a.adapter for a in arrivals if a.adapter})
        for arrival in arrivals:
            self._finish_until(arrival.at_s)
            self._now_s = arrival.at_s
            self._report()
            self._send(arrival)
            if advance is not None:
                advance()
        self._finish_until(float("inf"))
        return Result(
            self._ttft_ms,
            sum(a.num_tokens for a in arrivals),
            self._num_held_tokens,
            [worker.busy_ms for worker in self._workers],
            [worker.num_requests for worker in self._workers],
            sum(worker.num_loads for worker in self._workers),
        )

    def _give_decode(self, adapters: Collection[bytes]) -> None:
        """Have the decode worker hold all adapters."""
        [decode] = self._endpoints[Role.DECODE]
        decode.report(_report(adapters, AdapterMemory(PLENTY, 0.0)))

    def _send(self, arrival: Arrival) -> None:
        # Only full blocks are shared.
        hashes = arrival.hashes[: arrival.num_tokens // BLOCK_SIZE]
        request = RoutingRequest(
            num_prompt_tokens=arrival.num_tokens,
            max_tokens=arrival.num_output_tokens,
            block_hashes={NAMESPACE: hashes} if self._scheduler.policy.uses_prefixes else {},
            adapter=AdapterRef("a", arrival.adapter, "/a") if arrival.adapter else None,
        )
        route = self._scheduler.route(request)
        booking = self._scheduler.book.begin(
            route,
            num_prompt_tokens=arrival.num_tokens,
            block_hashes=request.block_hashes,
            waits_apart=route.estimate.adapter_ms > 0,
            adapter=arrival.adapter,
        )
        worker = self._by_id[route.prefill[0].record.worker]
        worker.num_requests += 1
        waiting = _Waiting(arrival, booking, ready=worker.use(arrival.adapter))
        worker.waiting.append(waiting)
        if not waiting.ready and arrival.adapter not in worker.loads:
            worker.loads.append(arrival.adapter)
            if len(worker.loads) == 1:
                self._load(worker)
        self._start(worker)

    def _at(self, after_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_s + after_ms / 1000, next(self._order), event))

    def _load(self, worker: SimWorker) -> None:
        worker.num_loads += 1
        self._at(worker.adapters.load_ms, lambda: self._loaded(worker))

    def _loaded(self, worker: SimWorker) -> None:
        worker.keep(worker.loads.popleft())
        if worker.loads:
            self._load(worker)
        self._start(worker)

    def _start(self, worker: SimWorker) -> None:
        first = next((each for each in worker.waiting if each.ready), None)
        if worker.computing is not None or first is None:
            return
        worker.waiting.remove(first)
        worker.computing, arrival = first, first.arrival
        num_held = self._num_held(worker, arrival)
        self._num_held_tokens += num_held
        worker.cache.touch(arrival.hashes[: num_held // BLOCK_SIZE])
        took_ms = self._service.prefill_ms(arrival.num_tokens, num_held)
        worker.busy_ms += took_ms
        first.num_held, first.took_ms = num_held, took_ms
        self._at(took_ms, lambda: self._computed(worker, first))

    def _num_held(self, worker: SimWorker, arrival: Arrival) -> int:
        full = arrival.hashes[: arrival.num_tokens // BLOCK_SIZE]
        return min(worker.cache.num_held(full) * BLOCK_SIZE, arrival.num_tokens - 1)

    def _finish_until(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self._now_s, _, event = heapq.heappop(self._events)
            self._report()
            event()

    def _computed(self, worker: SimWorker, done: _Waiting) -> None:
        self._ttft_ms.append((self._now_s - done.arrival.at_s) * 1000)
        worker.cache.touch(done.arrival.hashes[: done.arrival.num_tokens // BLOCK_SIZE])
        worker.endpoint.profile.observe_prefill(
            done.arrival.num_tokens, done.num_held, done.took_ms
        )
        done.booking.add_tokens(1)
        done.booking.release()
        worker.computing = None
        self._start(worker)

    def _report(self) -> None:
        """Have all workers report their adapters, if it is time."""
        if self._now_s - self._reported_s >= self._report_s:
            self._reported_s = self._now_s
            for worker in self._workers:
                worker.endpoint.report(worker.load())


def _report(held: Collection[bytes], memory: AdapterMemory) -> WorkerLoad:
    states = tuple(
        AdapterState(
            adapter=AdapterRef(digest.hex(), digest, "/a"),
            rank=16,
            place=AdapterPlace.DEVICE,
            load_ms=memory.load_ms,
        )
        for digest in held
    )
    return WorkerLoad(adapters=states, max_adapters=PLENTY, max_held_adapters=memory.num_adapters)


def _endpoint(name: str, role: Role, fleet: WorkerProfile | None, times: LoadTimes) -> Endpoint:
    record = WorkerRecord(
        worker=WorkerId(name, "1"),
        role=role,
        address=f"{name}:1",
        model="simulated",
        namespace=NAMESPACE,
        block_size=BLOCK_SIZE,
        num_blocks=PLENTY,
        max_model_len=PLENTY * BLOCK_SIZE,
    )
    return Endpoint(
        record,
        WorkerLoad(max_adapters=PLENTY),
        ready=True,
        profile=WorkerProfile(fleet),
        adapters=AdapterUse(times),
    )
