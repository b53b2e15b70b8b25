"""What a number of workers bears within the bounds. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.planning.base import ATTAINMENT, Counts, Pressure

if TYPE_CHECKING:
    from services.router.planning.base import Bounds, Demand, Observation
    from services.router.planning.speed import Speed

#: Share of the time that a prefill worker may compute: with bounds, and without.
MOST_BUSY, TARGET_BUSY = 0.92, 0.75
#: Share of a decode worker's KV pool and places that may be used: with bounds, and without.
MOST_FULL, TARGET_FULL = 0.9, 0.75
#: Standard deviations of the number of sequences for which there should be places.
SPREAD = 1.0
#: Within this time prompts that wait too long should be computed, beside those that come.
DRAIN_S = 10.0
#: Share of the allowed wait up to which waiting prompts are no reason for more workers.
WAIT_SHARE = 0.5
#: Share of a bound that is planned for: estimates are not exact.
BOUND_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Capacity:
    """The workers' capacity for requests of one kind."""

    speed: Speed
    bounds: Bounds
    demand: Demand

    @property
    def warnings(self) -> list[str]:
        """Return which bounds no number of workers meets; no worker is wanted for them."""
        found, demand = [], self.demand
        if self.bounds.max_ttft_ms is not None and demand.hopeless > 1 - ATTAINMENT:
            found.append(
                f"{demand.hopeless:.0%} of prompts take longer to compute alone than the "
                f"{self.bounds.max_ttft_ms:.0f} ms of their first token: more workers do not help"
            )
        if self.bounds.max_itl_ms is not None and not self._meets_itl:
            alone_ms = self.speed.step_ms(1, demand.context)
            found.append(
                f"a step of one sequence takes {alone_ms:.1f} ms and may take "
                f"{self.bounds.max_itl_ms:.1f} ms: more workers do not help"
            )
        if demand.context > self.speed.kv_tokens:
            found.append(
                f"a sequence has {demand.context:.0f} tokens and a worker's pool "
                f"{self.speed.kv_tokens}: more workers do not help"
            )
        return found

    def busy_share(self, num_workers: int) -> float:
        """Return the largest share of the time that prefill workers may compute."""
        slack_ms = self._slack_ms
        if slack_ms is None:
            return TARGET_BUSY
        low, high = 0.0, MOST_BUSY
        if self._late(high, num_workers, slack_ms) <= 1 - ATTAINMENT:
            return high
        for _ in range(30):
            middle = (low + high) / 2
            if self._late(middle, num_workers, slack_ms) <= 1 - ATTAINMENT:
                low = middle
            else:
                high = middle
        return low

    @property
    def batch(self) -> float:
        """The most sequences that a decode worker should have; at least 1."""
        demand, speed = self.demand, self.speed
        bounded = self.bounds.max_itl_ms is not None and self._meets_itl
        share = MOST_FULL if bounded else TARGET_FULL
        found = share * min(speed.kv_tokens / max(demand.context, 1.0), speed.max_sequences)
        if bounded:
            found = min(found, self._batch_of_itl)
        return max(1.0, found)

    def num_sequences(self, num_workers: int) -> float:
        """Return the mean number of sequences on all decode workers; infinite: they grow."""
        each_ms = self.speed.per_sequence_ms(self.demand.context)
        per_ms = self.demand.requests_per_s * self.demand.output_tokens / 1000
        room = 1 - per_ms * each_ms / num_workers
        if room <= 0:
            return math.inf
        return per_ms * self.speed.decode[0] / room

    def num_prefill(self, backlog_ms: float = 0.0) -> int:
        """Return how many prefill workers are needed: at least 1 if there is any work."""
        work = self.demand.prefill_work
        if work <= 0 and backlog_ms <= 0:
            return 0
        count = max(1, math.ceil(work / MOST_BUSY - 1e-9))
        while self._prefill_work(backlog_ms, count) > count * self.busy_share(count) * (1 + 1e-9):
            count += 1
        return count

    def num_decode(self, num_running: float = 0.0) -> int:
        """Return how many decode workers are needed: at least 1 if there is any work."""
        demand, batch = self.demand, self.batch
        per_ms = demand.requests_per_s * demand.output_tokens / 1000
        if per_ms <= 0 and num_running <= 0:
            return 0
        # Without the spread: places for the sequences that come and for their own slowing.
        own = self.speed.per_sequence_ms(demand.context) + self.speed.decode[0] / batch
        count = max(1, math.ceil(max(per_ms * own, num_running / batch) - 1e-9))
        while self._sequences(count, num_running) > count * batch * (1 + 1e-9):
            count += 1
        return count

    def pressure(
        self, present: Counts, *, backlog_ms: float = 0.0, num_running: float = 0.0
    ) -> Pressure:
        """Return the load of these workers; infinite where there is work and no worker."""
        work = self._prefill_work(backlog_ms, present.prefill)
        prefill = _over(work, present.prefill * self.busy_share(max(1, present.prefill)))
        needed = self._sequences(max(1, present.decode), num_running)
        return Pressure(prefill, _over(needed, present.decode * self.batch))

    def late_share(self, num_workers: int) -> float:
        """Return the share of prompts that wait too long; 1 if all do."""
        slack_ms = self._slack_ms
        if slack_ms is None or not num_workers:
            return float(slack_ms is None)
        return self._late(self.demand.prefill_work / num_workers, num_workers, slack_ms)

    def wait_ms(self, num_workers: int) -> float:
        """Return the mean wait of a prompt for its computation; infinite: it grows."""
        if not num_workers:
            return math.inf
        busy = self.demand.prefill_work / num_workers
        if busy >= 1:
            return math.inf
        return self._waits(busy, num_workers) * self._wait_of_waiting_ms(busy, num_workers)

    def itl_ms(self, num_workers: int) -> float:
        """Return the mean time between two tokens of an answer; infinite: it grows."""
        if not num_workers:
            return math.inf
        each = self.num_sequences(num_workers) / num_workers
        return self.speed.step_ms(each, each * self.demand.context)

    def _prefill_work(self, backlog_ms: float, num_workers: int) -> float:
        """Return the work that comes, and what should be made up for."""
        fine_ms = max(self.demand.prompt_ms, WAIT_SHARE * (self._slack_ms or 0.0))
        late_ms = max(0.0, backlog_ms - num_workers * fine_ms)
        return self.demand.prefill_work + late_ms / 1000 / DRAIN_S

    def _sequences(self, num_workers: int, num_running: float) -> float:
        mean = max(self.num_sequences(num_workers), num_running)
        return mean if mean == math.inf else mean + SPREAD * math.sqrt(mean)

    @property
    def _slack_ms(self) -> float | None:
        """How long a prompt may wait; None: there is no bound, or it cannot be met."""
        bound = self.bounds.max_ttft_ms
        if bound is None or self.demand.hopeless > 1 - ATTAINMENT:
            return None
        slack_ms = BOUND_SHARE * bound - self.demand.prompt_ms
        return slack_ms if slack_ms > 0 else None

    @property
    def _meets_itl(self) -> bool:
        bound = self.bounds.max_itl_ms
        return bound is None or self.speed.step_ms(1, self.demand.context) <= bound

    @property
    def _batch_of_itl(self) -> float:
        bound_ms = BOUND_SHARE * (self.bounds.max_itl_ms or 0.0) - self.speed.decode[0]
        each_ms = self.speed.per_sequence_ms(self.demand.context)
        return bound_ms / each_ms if each_ms > 0 else math.inf

    def _late(self, busy: float, num_workers: int, slack_ms: float) -> float:
        """Return the share of prompts that wait longer, in a queue before all workers.

        Waiting times are taken as exponential; whether one waits is Sakasegawa's approximation.
        """
        if busy >= 1:
            return 1.0
        if busy <= 0:
            return 0.0
        mean_ms = self._wait_of_waiting_ms(busy, num_workers)
        tail = math.exp(-slack_ms / mean_ms) if mean_ms > 0 else 0.0
        return self._waits(busy, num_workers) * tail

    def _waits(self, busy: float, num_workers: int) -> float:
        exponent = math.sqrt(2 * (num_workers + 1)) - 1
        return float(busy**exponent)

    def _wait_of_waiting_ms(self, busy: float, num_workers: int) -> float:
        mean_ms = self.demand.prompt_ms * (1 + self.demand.variation) / 2
        return mean_ms / (num_workers * (1 - busy))


def pressure_of(capacity: Capacity, seen: Observation, present: Counts) -> Pressure:
    """Return the load of so many workers with what is there and waits."""
    return capacity.pressure(
        present, backlog_ms=seen.backlog_ms, num_running=sum(w.num_running for w in seen.workers)
    )


def _over(load: float, room: float) -> float:
    if load <= 0:
        return 0.0
    return load / room if room > 0 else math.inf
