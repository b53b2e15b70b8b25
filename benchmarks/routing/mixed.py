"""Simulated workers that compute prompts and decode in the same steps, behind the real chooser.

A step lasts what `StepTime` says of its sequences and prompt tokens. Beside sequences that decode,
prompt tokens stretch a step as the engine's rule allows: by `prompt_room_ms`. A step of prompts
alone ends within `LONGEST_STEP_MS`. If it can pause, the sequences that came meanwhile get a step
of their own in each pause, and the prompts then go on for as long as they may stretch that step.
Prompts are computed in the order of their coming. Each step's tokens are sent while the next one
computes, so what a hand-off lets wait is the last step's; until then its second token waits.
Prompts wait in the router while no worker has room, as there. The router learns from the same
numbers that answers carry.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from typing import TYPE_CHECKING

from benchmarks.routing.mixed_worker import MAX_SEQUENCES, Answer, MixedWorker
from benchmarks.routing.outcome import Outcome
from benchmarks.routing.step_time import StepTime
from services.router.routing.base import RoutingRequest
from services.router.routing.book import Book
from services.router.routing.chooser import WorkerChooser
from services.router.routing.learn import learn_decode, learn_prefill
from services.router.routing.places.mode import PlacementMode
from services.router.routing.policies.find import find_policy
from services.router.routing.room import WorkerRoom
from services.router.usage import Timings, Usage
from services.router.workers.endpoint import Endpoint, WorkerSoftware
from services.router.workers.timing.profile import WorkerProfile
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.identity import Role, WorkerId
from shared.rpc.protocol import PROTOCOL_MINOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.routing.mixed_worker import Chunk
    from benchmarks.routing.traces import Arrival

#: No worker's KV pool is too small in these runs.
PLENTY = 1_000_000
#: Of all workers.
NAMESPACE = "00"
MAX_QUEUE_MS = 500.0
BOTH = frozenset({Role.PREFILL, Role.DECODE})


class MixedSimulation:
    """A cluster under one mode. The same arguments give the same result, to the last digit."""

    def __init__(
        self,
        mode: PlacementMode,
        *,
        num_prefill: int,
        num_decode: int,
        block_size: int,
        time: StepTime | None = None,
        num_blocks: int = 20_000,
        policy: str = "cost",
        seed: int = 0,
    ) -> None:
        self._now_ms = 0.0
        self._time = time or StepTime()
        self._block_size = block_size
        fleet = WorkerProfile(clock=self._clock)
        roles = [Role.PREFILL] * num_prefill + [Role.DECODE] * num_decode
        serves = frozenset[Role]() if mode is PlacementMode.DISAGGREGATED else BOTH
        self._workers = [
            MixedWorker(
                _endpoint(
                    f"{role}-{i}", role, serves, WorkerProfile(fleet, clock=self._clock), block_size
                ),
                self._time,
                num_blocks,
            )
            for i, role in enumerate(roles)
        ]
        self._by_id = {worker.endpoint.record.worker: worker for worker in self._workers}
        self._book = Book(clock=self._clock)
        self._chooser = WorkerChooser(
            self._serving,
            policy=find_policy(policy, random.Random(seed)),
            prefixes=self,
            book=self._book,
            mode=mode,
        )
        self._room = WorkerRoom(
            self._serving, self._book, max_worker_queue_ms=MAX_QUEUE_MS, mode=mode
        )
        self._waiting: deque[Arrival] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.outcome = Outcome()

    def _clock(self) -> float:
        return self._now_ms / 1000

    def _serving(self, role: Role) -> list[Endpoint]:
        return [w.endpoint for w in self._workers if w.endpoint.serves(role)]

    def lookup(self, hashes: Sequence[bytes]) -> Mapping[WorkerId, int]:
        """See PrefixLookup: the workers report at once what they store and evict."""
        counts = {id_: worker.cache.num_held(hashes) for id_, worker in self._by_id.items()}
        return {id_: count for id_, count in counts.items() if count}

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Serve all of them."""
        for arrival in arrivals:
            self._finish_until(arrival.at_s * 1000)
            self._now_ms = arrival.at_s * 1000
            self._waiting.append(arrival)
            self._let_in()
        self._finish_until(float("inf"))
        self.outcome.end_ms = self._now_ms
        return self.outcome

    def _let_in(self) -> None:
        while self._waiting and self._room(self._waiting[0].num_tokens):
            self._send(self._waiting.popleft())

    def _send(self, arrival: Arrival) -> None:
        full = arrival.hashes[: arrival.num_tokens // self._block_size]
        request = RoutingRequest(
            num_prompt_tokens=arrival.num_tokens,
            max_tokens=arrival.num_output_tokens,
            block_hashes={NAMESPACE: full},
        )
        route = self._chooser.route(request)
        booking = self._book.begin(
            route, num_prompt_tokens=arrival.num_tokens, block_hashes=request.block_hashes
        )
        computing = route.prefill[0] if route.prefill else route.decode
        if route.num_handed_tokens:
            self.outcome.num_split += 1
        elif route.prefill:
            self.outcome.num_handed_over += 1
        else:
            self.outcome.num_here += 1
        worker = self._by_id[computing.record.worker]
        target = route.num_handed_tokens or arrival.num_tokens
        worker.prompts.append(Answer(arrival, route, booking, target))
        self._start(worker)

    def _at(self, after_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_ms + after_ms, next(self._order), event))

    def _finish_until(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self._now_ms, _, event = heapq.heappop(self._events)
            event()

    def _start(self, worker: MixedWorker) -> None:
        if worker.is_busy or not (worker.prompts or worker.decoding):
            return
        for prompt in worker.prompts:
            if prompt.begun_ms < 0 and (prompt is worker.prompts[0] or not worker.decoding):
                self._look_up(worker, prompt)
        took_ms, batch, chunks = worker.plan()
        for prompt, _ in chunks:
            if prompt.begun_ms < 0:
                prompt.begun_ms = self._now_ms
        worker.is_busy = True
        if batch or self._time.pause_ms is None:
            self._at(took_ms, lambda: self._end_step(worker, batch, chunks))
        else:
            self._go_on(worker, chunks, took_ms)

    def _go_on(
        self, worker: MixedWorker, chunks: list[Chunk], left_ms: float, sure_ms: float = 0.0
    ) -> None:
        """Compute prompts alone, for `left_ms` in all and `sure_ms` before the next pause."""
        if left_ms <= 0:
            self._end_step(worker, [], chunks)
        elif worker.decoding and sure_ms < (self._time.pause_ms or 0):
            took_ms, batch = worker.plain()
            self._at(took_ms, lambda: self._resume(worker, batch, chunks, left_ms, took_ms))
        else:
            ms = min(left_ms, self._time.pause_ms or left_ms)
            self._at(ms, lambda: self._go_on(worker, chunks, left_ms - ms, sure_ms - ms))

    def _resume(
        self,
        worker: MixedWorker,
        batch: list[Answer],
        chunks: list[Chunk],
        left_ms: float,
        took_ms: float,
    ) -> None:
        self._tokens(worker, batch)
        self._go_on(worker, chunks, left_ms, worker.beside_ms(took_ms))

    def _look_up(self, worker: MixedWorker, prompt: Answer) -> None:
        if prompt.num_computed:
            return
        num_tokens = prompt.arrival.num_tokens
        full = prompt.arrival.hashes[: num_tokens // self._block_size]
        prompt.num_held = min(worker.cache.num_held(full) * self._block_size, num_tokens - 1)
        prompt.num_computed = prompt.num_held

    def _tokens(self, worker: MixedWorker, batch: list[Answer]) -> None:
        for answer in batch:
            self._token(answer)
            if answer.num_tokens >= answer.arrival.num_output_tokens:
                worker.decoding.remove(answer)
                self._end(worker, answer)

    def _end_step(self, worker: MixedWorker, batch: list[Answer], chunks: list[Chunk]) -> None:
        self._tokens(worker, batch)
        for prompt, num in chunks:
            prompt.num_computed += num
            prompt.num_last = num
            if prompt.num_computed < prompt.target:
                continue
            worker.prompts.remove(prompt)
            if prompt.target < prompt.arrival.num_tokens:
                self._hand_on(worker, prompt)
            else:
                self._computed(worker, prompt)
        worker.is_busy = False
        self._start(worker)

    def _token(self, answer: Answer) -> None:
        self.outcome.gaps_ms.append(self._now_ms - answer.last_ms)
        answer.last_ms = self._now_ms
        answer.num_tokens += 1
        answer.booking.add_tokens(1)

    def _hand_on(self, worker: MixedWorker, prompt: Answer) -> None:
        """Move the beginning of a split prompt to the worker that computes the rest."""
        num_blocks = prompt.target // self._block_size
        worker.cache.touch(prompt.arrival.hashes[:num_blocks])
        writer = self._by_id[prompt.route.decode.record.worker]
        exposed_ms = self._exposed_ms(prompt, prompt.target)
        prompt.target = prompt.arrival.num_tokens

        def land() -> None:
            writer.prompts.append(prompt)
            self._start(writer)

        self._at(exposed_ms, land)

    def _exposed_ms(self, prompt: Answer, num_moved: int) -> float:
        """Return the time from the end of the last step until all blocks are there."""
        # The first steps' tokens and those of the cache, while the steps compute.
        before_ms = self._time.per_moved_ms * (num_moved - prompt.num_last)
        late_ms = max(0.0, before_ms - (self._now_ms - prompt.begun_ms))
        return late_ms + self._time.exposed_ms(prompt.num_last)

    def _computed(self, worker: MixedWorker, answer: Answer) -> None:
        arrival = answer.arrival
        worker.cache.touch(arrival.hashes[: arrival.num_tokens // self._block_size])
        answer.first_ms = answer.last_ms = self._now_ms
        answer.num_tokens = 1
        answer.booking.add_tokens(1)
        writer = self._by_id[answer.route.decode.record.worker]
        if writer is worker:  # it computed all of the prompt, or the rest
            self._land(writer, answer)
        else:
            answer.exposed_ms = self._exposed_ms(answer, arrival.num_tokens)
            self._at(answer.exposed_ms, lambda: self._land(writer, answer))
        self._let_in()

    def _land(self, worker: MixedWorker, answer: Answer) -> None:
        arrival = answer.arrival
        worker.cache.touch(arrival.hashes[: arrival.num_tokens // self._block_size])
        if answer.num_tokens >= arrival.num_output_tokens:
            self._end(worker, answer)
            return
        worker.decoding.append(answer)
        self._start(worker)

    def _end(self, worker: MixedWorker, answer: Answer) -> None:
        arrival, route = answer.arrival, answer.route
        num_out = arrival.num_output_tokens
        worker.cache.touch(arrival.hashes)
        decode_ms = self._now_ms - answer.first_ms
        self.outcome.ttft_ms.append(answer.first_ms - arrival.at_s * 1000)
        self.outcome.itl_ms.append(decode_ms / (num_out - 1) if num_out > 1 else 0.0)
        moved = arrival.num_tokens if route.prefill else 0
        timings = Timings(
            prefill_ms=answer.first_ms - answer.begun_ms,
            decode_ms=decode_ms,
            prefill_place="split" if route.num_handed_tokens else "",
            prefill_worker=route.prefill[0].name if route.prefill else "",
            transfer_exposed_ms=answer.exposed_ms,
            transfer_ms=answer.exposed_ms,
            transfer_bytes=moved * 16_384,
        )
        usage = Usage(
            prompt_tokens=arrival.num_tokens,
            local_hit_tokens=0 if moved else answer.num_held,
            transferred_tokens=moved,
            transferred_hit_tokens=answer.num_held if moved else 0,
        )
        learn_prefill(
            route,
            usage,
            timings,
            num_beside=answer.booking.num_beside,
            answer_tokens=self._book.answer_tokens,
        )
        answer.booking.release()
        learn_decode(route, answer.booking, timings, num_output_tokens=num_out)
        self._let_in()


def _endpoint(
    name: str, role: Role, serves: frozenset[Role], profile: WorkerProfile, block_size: int
) -> Endpoint:
    record = WorkerRecord(
        worker=WorkerId(name, "1"),
        role=role,
        address=f"{name}:1",
        model="simulated",
        namespace=NAMESPACE,
        block_size=block_size,
        num_blocks=PLENTY,
        max_model_len=PLENTY * block_size,
        max_num_seqs=MAX_SEQUENCES,
        serves=serves,
    )
    software = WorkerSoftware(protocol_minor=PROTOCOL_MINOR)
    return Endpoint(record, WorkerLoad(), ready=True, profile=profile, software=software)
