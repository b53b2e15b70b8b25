"""What a router sees of one model: arrivals at its door, its queue, and its own book."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.planner.report import Report, WorkerWork
from services.router.planning.meter import DemandMeter
from services.router.planning.speed import KV_TOKENS_PRIOR, Speed
from shared.identity import Role

if TYPE_CHECKING:
    from services.router.admission.cold_start import ColdStart
    from services.router.admission.entrance import Entrance
    from services.router.planning.base import Bounds
    from services.router.routing.book import Book
    from services.router.usage import Usage
    from services.router.workers.endpoints import EndpointPool


class PoolView:
    """Counts one model's requests, and reads the router's queue and book."""

    def __init__(
        self,
        endpoints: EndpointPool,
        admission: Entrance,
        cold_start: ColdStart,
        book: Book,
        bounds: Bounds,
    ) -> None:
        self._endpoints = endpoints
        self._admission = admission
        self._cold_start = cold_start
        self._book = book
        self._meter = DemandMeter(max_ttft_ms=bounds.max_ttft_ms, clock=book.clock)
        self._kv_tokens = KV_TOKENS_PRIOR
        self._max_sequences = Speed.prior().max_sequences

    def arrived(self, num_prompt_tokens: int) -> None:
        """Count a request that came."""
        self._meter.arrived(num_prompt_tokens)

    def answered(self, usage: Usage) -> None:
        """Note what was found of a prompt, and how long its answer was."""
        num_held = min(max(0, usage.cached_tokens), usage.prompt_tokens - 1)
        prompt_ms = self.speed().prefill_ms(usage.prompt_tokens, num_held)
        self._meter.routed(num_held, prompt_ms)
        self._meter.ended(usage.completion_tokens)

    def report(self) -> Report:
        """Return what this router knows, and begin the next interval."""
        now_s = self._book.clock()
        demand = self._meter.take()
        per_token_ms = demand.prompt_ms / max(demand.prompt_tokens, 1.0)
        return Report(
            demand=demand,
            speed=self.speed(),
            num_measurements=sum(self._endpoints.fleet(role).num_measurements for role in Role),
            waiting_ms=self._admission.num_queued_tokens * per_token_ms,
            num_waiting=self._admission.num_queued + self._cold_start.num_waiting,
            work={
                str(each.record.worker): WorkerWork(
                    each.work.queue_ms(now_s), each.work.num_decoding, each.work.num_held_tokens
                )
                for each in self._endpoints.everyone()
            },
        )

    def speed(self) -> Speed:
        """Return the speed of a worker, as measured of all of its role."""
        records = [each.record for each in self._endpoints.everyone()]
        rooms = [record.num_blocks * record.block_size for record in records]
        if rooms:
            # The last known one while there is no worker.
            self._kv_tokens = sum(rooms) // len(rooms)
            told = [record.max_num_seqs for record in records if record.max_num_seqs]
            if told:
                self._max_sequences = sum(told) // len(told)
        fleets = [self._endpoints.fleet(role) for role in Role]
        return Speed(
            prefill=max(fleets, key=lambda p: p.num_measurements).prefill_coefficients,
            decode=max(fleets, key=lambda p: p.num_decode_measurements).decode_coefficients,
            kv_tokens=self._kv_tokens,
            max_sequences=self._max_sequences,
        )
