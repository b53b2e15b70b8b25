"""A cluster by a clock that we turn: workers with preferences, that start, move and leave.

A worker computes its prompts one after the other, and the steps of its batch beside them: while it
has both, each goes half as fast. Times are those of its step model; a batch advances as a fluid, so
an answer costs a few events and not one per token. Prompts go to the worker that prefers prefill
and has the shortest queue, answers to the one that prefers decode and has the fewest sequences, if
its pool has room. The same arguments give the same result.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.planning.base import Counts, Observation, WorkerState
from services.router.planning.meter import DemandMeter
from shared.identity import Role, WorkerId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cli.plan.workload import Request
    from services.router.planning.base import Bounds, Decision
    from services.router.planning.planner import Planner
    from services.router.planning.speed import Speed

#: Interval of the planner's looks.
LOOK_S = 5.0
#: Share of a pool that is given to sequences, at their full lengths.
ROOM = 0.95
#: After the last arrival answers end within this time, or never.
TAIL_S = 3600.0


@dataclass(slots=True, eq=False)
class InFlight:
    """A request on its way."""

    request: Request
    prompt_left_ms: float
    first_s: float = math.inf
    end_s: float = math.inf

    @property
    def num_full(self) -> int:
        """Tokens at its end."""
        return self.request.num_tokens + self.request.num_output_tokens


@dataclass(slots=True, eq=False)
class SimWorker:
    """One worker."""

    worker: WorkerId
    preference: Role
    began_s: float
    ready_s: float
    speed: Speed
    leaving: bool = False
    prompts: deque[InFlight] = field(default_factory=deque)
    #: Ends of sequences, in tokens that each sequence of the batch has got since the start.
    batch: list[tuple[float, int, InFlight]] = field(default_factory=list)
    num_tokens: float = 0.0
    num_reserved: int = 0
    _per_sequence: float = 0.0
    _at_s: float = 0.0
    #: Of its next event; older ones are void.
    version: int = 0

    def advance(self, now_s: float) -> None:
        """Compute until `now_s`; nothing ends on the way."""
        passed_ms = (now_s - self._at_s) * 1000
        self._at_s = now_s
        if passed_ms <= 0:
            return
        if self.prompts and self.batch:
            passed_ms /= 2
        if self.prompts:
            self.prompts[0].prompt_left_ms -= passed_ms
        if self.batch:
            got = self._tokens_in(passed_ms)
            self._per_sequence += got
            self.num_tokens += got * len(self.batch)

    def next_end_s(self) -> float:
        """Return when the first of its prompts or sequences ends."""
        stretch = 2 if self.prompts and self.batch else 1
        soonest_ms = math.inf
        if self.prompts:
            soonest_ms = self.prompts[0].prompt_left_ms
        if self.batch:
            soonest_ms = min(soonest_ms, self._ms_for(self.batch[0][0] - self._per_sequence))
        return self._at_s + max(0.0, soonest_ms) * stretch / 1000

    def join(self, sequence: InFlight, order: int) -> None:
        """Add a sequence whose prompt is computed."""
        ends = self._per_sequence + sequence.request.num_output_tokens - 1
        heapq.heappush(self.batch, (ends, order, sequence))
        self.num_tokens += sequence.request.num_tokens

    def ended(self) -> list[InFlight]:
        """Remove and return sequences that have all their tokens."""
        found = []
        while self.batch and self.batch[0][0] <= self._per_sequence + 1e-6:
            _, _, sequence = heapq.heappop(self.batch)
            self.num_tokens -= sequence.num_full - 1
            self.num_reserved -= sequence.num_full
            found.append(sequence)
        if not self.batch:
            self.num_tokens = 0.0
        return found

    def queue_ms(self) -> float:
        """Return the computation of its prompts."""
        return sum(sequence.prompt_left_ms for sequence in self.prompts)

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self.prompts and not self.batch and not self.num_reserved

    def _step(self) -> tuple[float, float]:
        """Return the time of a step, and by how much it grows per step."""
        num = len(self.batch)
        return self.speed.step_ms(num, self.num_tokens), self.speed.decode[2] * num / 1e3

    def _ms_for(self, num_tokens: float) -> float:
        step, growth = self._step()
        return step * num_tokens + growth * num_tokens * num_tokens / 2

    def _tokens_in(self, ms: float) -> float:
        step, growth = self._step()
        return 2 * ms / (step + math.sqrt(step * step + 2 * growth * ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run gave."""

    ttft_ms: list[float]
    #: Mean time between the tokens of each answer.
    itl_ms: list[float]
    attainment: float
    #: From the order of a worker to its end.
    worker_s: float
    duration_s: float
    num_moves: int = 0
    num_changes: int = 0
    peak: int = 0
    decisions: list[Decision] = field(default_factory=list)

    @property
    def goodput_per_s(self) -> float:
        """Answers per second that met the bounds."""
        return self.attainment * len(self.ttft_ms) / self.duration_s


class ClusterSimulation:
    """Serves requests with a fixed number of workers, or with those that a planner wants."""

    def __init__(
        self,
        speed: Speed,
        bounds: Bounds,
        counts: Counts,
        *,
        planner: Planner | None = None,
        moves: bool = True,
        scales: bool = True,
        startup_s: float = 60.0,
    ) -> None:
        """Start with `counts`, ready.

        `moves`: carry the planner's moves out. `scales`: follow its counts; a worker takes
        `startup_s` to start, and leaves when it has nothing to do.
        """
        self._speed, self._bounds, self._planner = speed, bounds, planner
        self._moves, self._scales, self._startup_s = moves, scales, startup_s
        self._now_s = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._workers: list[SimWorker] = []
        #: Prompts without a worker, and sequences without room.
        self._unsent: deque[InFlight] = deque()
        self._unplaced: deque[InFlight] = deque()
        self._done: list[InFlight] = []
        self._meter = DemandMeter(max_ttft_ms=bounds.max_ttft_ms, clock=lambda: self._now_s)
        self._gone_s = 0.0
        self._peak = 0
        self._num_moves = self._num_changes = 0
        self._decisions: list[Decision] = []
        for role in (Role.PREFILL, Role.DECODE):
            for _ in range(counts.of(role)):
                self._add(role, 0.0)

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Serve all of them. Those that never end miss the bounds."""
        for request in requests:
            self._at(request.at_s, lambda r=request: self._arrive(r))  # type: ignore[misc]
        last_s = requests[-1].at_s if requests else 0.0
        if self._planner is not None:
            for i in range(1, int(last_s / LOOK_S) + 1):
                self._at(i * LOOK_S, self._look)
        end_s = last_s
        while self._events and len(self._done) < len(requests):
            at_s, _, event = heapq.heappop(self._events)
            if at_s > last_s + TAIL_S:
                break
            self._now_s = at_s
            event()
        # Worker-seconds until the last arrival: what remains is the same for every plan.
        seconds = self._gone_s + sum(max(0.0, end_s - w.began_s) for w in self._workers)
        met = sum(1 for sequence in self._done if self._met(sequence))
        return Outcome(
            ttft_ms=[(s.first_s - s.request.at_s) * 1000 for s in self._done],
            itl_ms=[_itl_ms(s) for s in self._done],
            attainment=met / max(1, len(requests)),
            worker_s=seconds,
            duration_s=max(last_s, 1.0),
            num_moves=self._num_moves,
            num_changes=self._num_changes,
            peak=self._peak,
            decisions=self._decisions,
        )

    def observe(self) -> Observation:
        """Return what a router would know now."""
        demand = self._meter.take()
        states = [
            WorkerState(
                worker=w.worker,
                preference=w.preference,
                queue_ms=w.queue_ms(),
                num_running=len(w.batch),
                num_held_tokens=w.num_reserved,
            )
            for w in self._workers
            if w.ready_s <= self._now_s and not w.leaving
        ]
        return Observation(
            now_s=self._now_s,
            demand=demand,
            workers=states,
            waiting_ms=sum(s.prompt_left_ms for s in self._unsent),
            num_waiting=len(self._unsent) + len(self._unplaced),
        )

    def _met(self, sequence: InFlight) -> bool:
        ttft_ms = (sequence.first_s - sequence.request.at_s) * 1000
        max_ttft_ms, max_itl_ms = self._bounds.max_ttft_ms, self._bounds.max_itl_ms
        return (max_ttft_ms is None or ttft_ms <= max_ttft_ms) and (
            max_itl_ms is None or _itl_ms(sequence) <= max_itl_ms
        )

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _add(self, role: Role, after_s: float) -> None:
        name = WorkerId(f"worker-{next(self._order):06}", "1")
        worker = SimWorker(name, role, self._now_s, self._now_s + after_s, self._speed)
        worker._at_s = self._now_s
        self._workers.append(worker)
        self._peak = max(self._peak, len(self._workers))
        if after_s:
            self._at(worker.ready_s, self._send_waiting)

    def _usable(self, role: Role) -> list[SimWorker]:
        ready = [w for w in self._workers if w.ready_s <= self._now_s and not w.leaving]
        return [w for w in ready if w.preference is role] or ready

    def _arrive(self, request: Request) -> None:
        self._meter.arrived(request.num_tokens)
        prompt_ms = self._speed.prefill_ms(request.num_tokens, request.num_held)
        self._meter.routed(request.num_held, prompt_ms)
        self._unsent.append(InFlight(request, prompt_ms))
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._unsent:
            usable = self._usable(Role.PREFILL)
            if not usable:
                break
            for each in usable:
                each.advance(self._now_s)
            worker = min(usable, key=SimWorker.queue_ms)
            worker.prompts.append(self._unsent.popleft())
            self._schedule(worker)
        self._place_waiting()

    def _place_waiting(self) -> None:
        while self._unplaced:
            sequence = self._unplaced[0]
            usable = [w for w in self._usable(Role.DECODE) if self._has_room(w, sequence)]
            if not usable:
                return
            self._unplaced.popleft()
            worker = min(usable, key=lambda w: (len(w.batch), w.num_reserved))
            worker.advance(self._now_s)
            worker.num_reserved += sequence.num_full
            worker.join(sequence, next(self._order))
            self._schedule(worker)

    def _has_room(self, worker: SimWorker, sequence: InFlight) -> bool:
        if not worker.batch:
            return True
        fits = worker.num_reserved + sequence.num_full <= ROOM * self._speed.kv_tokens
        return fits and len(worker.batch) < self._speed.max_sequences

    def _schedule(self, worker: SimWorker) -> None:
        worker.version += 1
        version = worker.version
        end_s = worker.next_end_s()
        if end_s < math.inf:
            self._at(end_s, lambda: self._happen(worker, version))

    def _happen(self, worker: SimWorker, version: int) -> None:
        if worker.version != version:
            return
        worker.advance(self._now_s)
        while worker.prompts and worker.prompts[0].prompt_left_ms <= 1e-6:
            sequence = worker.prompts.popleft()
            sequence.first_s = self._now_s
            if sequence.request.num_output_tokens > 1:
                self._unplaced.append(sequence)
            else:
                self._end(sequence)
        for sequence in worker.ended():
            self._end(sequence)
        self._schedule(worker)
        self._place_waiting()
        self._let_go()

    def _end(self, sequence: InFlight) -> None:
        sequence.end_s = self._now_s
        self._meter.ended(sequence.request.num_output_tokens)
        self._done.append(sequence)

    def _let_go(self) -> None:
        for worker in [w for w in self._workers if w.leaving and w.idle]:
            self._gone_s += self._now_s - worker.began_s
            self._workers.remove(worker)

    def _look(self) -> None:
        if self._planner is None:
            return
        for worker in self._workers:
            worker.advance(self._now_s)
            self._schedule(worker)
        decision = self._planner.look(self.observe(), self._speed)
        self._decisions.append(decision)
        if self._moves and decision.move is not None:
            moved = next(w for w in self._workers if w.worker == decision.move.worker)
            moved.preference = decision.move.to
            self._num_moves += 1
            self._planner.moved(self._now_s)
        if self._scales:
            self._follow(decision.wanted)
        self._send_waiting()

    def _follow(self, wanted: Counts) -> None:
        for role in (Role.PREFILL, Role.DECODE):
            there = [w for w in self._workers if w.preference is role and not w.leaving]
            missing = wanted.of(role) - len(there)
            if missing:
                self._num_changes += 1
            for _ in range(missing):
                self._add(role, self._startup_s)
            there.sort(key=lambda w: (w.ready_s <= self._now_s, w.queue_ms(), len(w.batch)))
            for worker in there[: max(0, -missing)]:
                worker.leaving = True
        self._let_go()


def _itl_ms(sequence: InFlight) -> float:
    num_gaps = sequence.request.num_output_tokens - 1
    return (sequence.end_s - sequence.first_s) * 1000 / num_gaps if num_gaps else 0.0
