"""The state of live and recently lost workers, and when each state began."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from services.router.workers.timing.recent import Recent
from shared.directory.base import AdapterPlace
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.dashboard.recent import RequestRow
    from services.router.usage import Usage
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId

MAX_GONE = 64
MAX_CHANGES = 50
#: Adapters of a worker that are named.
MAX_ADAPTERS = 8
#: Time for which a worker that left is still shown.
GONE_S = 600.0
#: Older requests hardly count in a worker's hit rate.
HITS_WINDOW_S = 300.0


class State(StrEnum):
    """State of a worker."""

    #: It has not answered the canary yet.
    JOINING = "joining"
    READY = "ready"
    #: A request failed there, the worker reports itself unhealthy, or its weights are not those of
    #: its generation: nothing is sent to it.
    SUSPENDED = "suspended"
    #: It takes no new work.
    DRAINING = "draining"
    #: It deregistered after it had drained.
    LEFT = "left"
    #: Its lease has ended.
    LOST = "lost"


class WorkerRow(msgspec.Struct, kw_only=True):
    """One worker."""

    name: str
    incarnation: str
    #: The role for which it is preferred.
    role: str
    #: The role that it started with.
    first_role: str
    #: The roles whose services it has.
    serves: list[str]
    state: State
    #: Unix time at which the state was first seen.
    since_s: float
    address: str
    model: str
    version: str
    num_running: int
    num_waiting: int
    #: Blocks held by sequences, blocks with a reusable prefix, and all blocks.
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    block_size: int
    max_model_len: int
    #: Share of prompt tokens that were cached there; None without recent prompts.
    hit_rate: float | None
    #: Adapters in its memory, and names of those that it computes with; None: it serves none.
    num_adapters: int | None
    adapters: list[str]
    #: Time since its last heartbeat.
    lease_age_s: float
    #: Work that this router sent there and that has not ended.
    num_requests: int
    num_waiting_tokens: int


class WorkerChange(msgspec.Struct, kw_only=True):
    """A change of a worker's state, or of its preference."""

    number: int
    at_s: float
    worker: str
    role: str
    state: State
    #: Whether its preference has changed, to `role`.
    prefers: bool = False


@dataclass(slots=True)
class _Known:
    row: WorkerRow
    was_ready: bool = False


@dataclass(slots=True)
class _Hits:
    """Prompt tokens that were sent to one worker, and those of them that it held."""

    asked: Recent = field(default_factory=lambda: Recent(HITS_WINDOW_S))
    had: Recent = field(default_factory=lambda: Recent(HITS_WINDOW_S))

    def rate(self, now_s: float) -> float | None:
        asked = self.asked.total(now_s)
        return round(min(1.0, self.had.total(now_s) / asked), 4) if asked >= 1 else None


class WorkerWatch:
    """Observes all endpoints once a second."""

    def __init__(
        self,
        endpoints: Callable[[], Iterable[Endpoint]],
        num_cached: Callable[[WorkerId], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Make an empty view. `num_cached` returns the directory's number of blocks of a worker."""
        self._endpoints = endpoints
        self._num_cached = num_cached
        self._clock = clock
        self._wall_clock = wall_clock
        self._known: dict[WorkerId, _Known] = {}
        self._gone: OrderedDict[str, WorkerRow] = OrderedDict()
        self._hits: dict[str, _Hits] = {}
        self._changes: deque[WorkerChange] = deque(maxlen=MAX_CHANGES)
        self.num_changes = 0

    def look(self) -> None:
        """Update the states of all workers."""
        endpoints = {endpoint.record.worker: endpoint for endpoint in self._endpoints()}
        # The end of a worker's last run is recorded before its new one begins.
        for worker in self._known.keys() - endpoints.keys():
            self._went(self._known[worker].row)
        self._known = {
            worker: self._seen(endpoint, self._known.get(worker))
            for worker, endpoint in endpoints.items()
        }
        names = {worker.name for worker in endpoints}
        for name in (names & self._gone.keys()) | self._too_old():
            del self._gone[name]
        self._hits = {
            name: hits for name, hits in self._hits.items() if name in names | self._gone.keys()
        }

    def rows(self) -> list[WorkerRow]:
        """Return a row per worker, prefill workers first."""
        rows = [*(known.row for known in self._known.values()), *self._gone.values()]
        return sorted(rows, key=lambda row: (row.role != Role.PREFILL, row.name))

    def kv_used(self) -> dict[str, float]:
        """Return the share of each live worker's KV pool that sequences hold."""
        return {
            known.row.name: known.row.blocks_used / max(1, known.row.blocks_total)
            for known in self._known.values()
        }

    def changes(self, after: int = 0) -> list[WorkerChange]:
        """Return changes with a larger number, oldest first, as far as they are still kept."""
        return [change for change in self._changes if change.number > after]

    def ended(self, row: RequestRow, usage: Usage) -> None:
        """Record the hits of an ended request's prompt on its workers."""
        self.hit(row, prefill=usage.transferred_hit_tokens, decode=usage.local_hit_tokens)

    def hit(self, row: RequestRow, *, prefill: int, decode: int) -> None:
        """Record the tokens of an ended request's prompt that its workers held."""
        if row.prefill:
            self._note_hits(row.prefill, row.prompt_tokens, prefill)
        if row.decode:
            self._note_hits(row.decode, row.prompt_tokens, decode)

    def _note_hits(self, name: str, num_asked: int, num_had: int) -> None:
        if name not in self._hits and all(name != worker.name for worker in self._known):
            return
        now_s = self._clock()
        hits = self._hits.setdefault(name, _Hits())
        hits.asked.add(num_asked, now_s)
        hits.had.add(num_had, now_s)

    def _seen(self, endpoint: Endpoint, known: _Known | None) -> _Known:
        was_ready = endpoint.ready or (known is not None and known.was_ready)
        state = _state(endpoint, was_ready=was_ready)
        since_s = self._wall_clock() if known is None else known.row.since_s
        if known is None or known.row.state is not state:
            since_s = self._wall_clock()
            self._changed(endpoint.name, endpoint.preference, state)
        elif known.row.role != endpoint.preference:
            self._changed(endpoint.name, endpoint.preference, state, prefers=True)
        return _Known(self._row(endpoint, state, since_s), was_ready)

    def _row(self, endpoint: Endpoint, state: State, since_s: float) -> WorkerRow:
        record, load, now_s = endpoint.record, endpoint.load, self._clock()
        hits = self._hits.get(endpoint.name)
        # Before the first heartbeat nothing is known about its blocks.
        num_free = load.num_free_blocks if load.num_free_blocks or load.num_running else None
        return WorkerRow(
            name=endpoint.name,
            incarnation=record.worker.incarnation,
            role=endpoint.preference.value,
            first_role=record.role.value,
            serves=sorted(record.served),
            state=state,
            since_s=round(since_s, 3),
            address=record.address,
            model=record.model,
            version=endpoint.software.version,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            blocks_used=0 if num_free is None else max(0, record.num_blocks - num_free),
            blocks_cached=min(record.num_blocks, self._num_cached(record.worker)),
            blocks_total=record.num_blocks,
            block_size=record.block_size,
            max_model_len=record.max_model_len,
            hit_rate=None if hits is None else hits.rate(now_s),
            num_adapters=_num_adapters(endpoint),
            adapters=_running_adapters(endpoint),
            lease_age_s=round(max(0.0, now_s - endpoint.heard_s), 1),
            num_requests=endpoint.work.num_requests,
            num_waiting_tokens=endpoint.work.num_waiting_tokens,
        )

    def _went(self, row: WorkerRow) -> None:
        """Keep its last row for a while, without values that only a live worker has."""
        state = State.LEFT if row.state is State.DRAINING else State.LOST
        self._changed(row.name, row.role, state)
        self._gone.pop(row.name, None)
        self._gone[row.name] = msgspec.structs.replace(
            row,
            state=state,
            since_s=round(self._wall_clock(), 3),
            num_running=0,
            num_waiting=0,
            blocks_used=0,
            blocks_cached=0,
            num_requests=0,
            num_waiting_tokens=0,
            num_adapters=None,
            adapters=[],
        )
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def _too_old(self) -> set[str]:
        oldest_s = self._wall_clock() - GONE_S
        return {name for name, row in self._gone.items() if row.since_s < oldest_s}

    def _changed(self, worker: str, role: str, state: State, *, prefers: bool = False) -> None:
        self.num_changes += 1
        self._changes.append(
            WorkerChange(
                number=self.num_changes,
                at_s=round(self._wall_clock(), 3),
                worker=worker,
                role=role,
                state=state,
                prefers=prefers,
            )
        )


def _num_adapters(endpoint: Endpoint) -> int | None:
    if not endpoint.adapters.max_adapters:
        return None
    return sum(state.place is not AdapterPlace.KNOWN for state in endpoint.adapters.states)


def _running_adapters(endpoint: Endpoint) -> list[str]:
    states = endpoint.adapters.states
    return [state.adapter.name for state in states if state.num_running][:MAX_ADAPTERS]


def _state(endpoint: Endpoint, *, was_ready: bool) -> State:
    if endpoint.draining:
        return State.DRAINING
    if endpoint.refusal:
        return State.SUSPENDED
    if endpoint.ready:
        return State.READY
    return State.SUSPENDED if was_ready else State.JOINING
