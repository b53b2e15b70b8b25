"""Whether fetching a prefix is faster than computing it, from recent measurements."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.worker.reuse.linear_cost import LinearCost, Rates
from shared.worker.reuse_settings import ReusePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.engine_stats import EngineStats
    from shared.identity import WorkerId

#: Before any measurement: milliseconds per step, and per token in it.
PREFILL_PRIOR = Rates(2.0, 0.1)
#: Before any transfer: milliseconds for the calls and the wait for the peer's engine, and per byte.
#: The rates are half of those in docs/log.md between two processes.
TRANSFER_PRIORS = {
    "local": Rates(3.0, 5e-7),
    "shm": Rates(4.0, 3e-7),
    "zmq": Rates(5.0, 8e-7),
}
OTHER_PRIOR = Rates(5.0, 1e-6)
HALF_LIFE_S = 120.0
MAX_PEERS = 256


@dataclass(frozen=True, slots=True)
class Decision:
    """Both costs, and the decision."""

    fetch: bool
    move_ms: float
    compute_ms: float


class CostModel:
    """Learns the costs of computing and moving on this worker. On one thread."""

    def __init__(
        self, *, tokens_per_step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._prefill = self._cost(PREFILL_PRIOR, weight=0.1)
        self._connectors: dict[str, LinearCost] = {}
        self._peers: OrderedDict[tuple[str, WorkerId], LinearCost] = OrderedDict()
        self._last_counts = (0, 0, 0)

    def observe_engine(self, stats: EngineStats) -> None:
        """Learn from the steps with prompts since the last call."""
        names = ("prefill_steps", "prefill_step_tokens", "prefill_step_us")
        counts = tuple(stats.counters.get(name, 0) for name in names)
        steps, tokens, us = (new - old for new, old in zip(counts, self._last_counts, strict=True))
        self._last_counts = (counts[0], counts[1], counts[2])
        if steps > 0:
            self._prefill.observe(steps, tokens, us / 1e3)

    def observe_transfer(
        self, connector: str, worker: WorkerId, num_bytes: int, took_ms: float
    ) -> None:
        """Learn from a fetch, from the call until the last verified byte."""
        self._connector(connector).observe(1, num_bytes, took_ms)
        self._peer(connector, worker).observe(1, num_bytes, took_ms)

    def compute_ms(self, num_tokens: int) -> float:
        """Return the additional time [ms] of a prompt's computation for this many tokens.

        Proportional, although steps are whole: a part of the last step is saved, too.
        """
        return self._prefill.rates().total_ms(num_tokens / self._tokens_per_step, num_tokens)

    def move_ms(self, connector: str, worker: WorkerId, num_bytes: int) -> float:
        """Return the time [ms] of fetching this many bytes from this peer."""
        return self._peer(connector, worker).rates().total_ms(1, num_bytes)

    def decide(
        self,
        policy: ReusePolicy,
        *,
        connector: str,
        worker: WorkerId,
        num_tokens: int,
        num_bytes: int,
    ) -> Decision:
        """Decide. More tokens favour fetching, more bytes computing."""
        move_ms = self.move_ms(connector, worker, num_bytes)
        compute_ms = self.compute_ms(num_tokens)
        pays = policy is ReusePolicy.AUTO and move_ms < compute_ms
        return Decision(policy is ReusePolicy.ALWAYS or pays, move_ms, compute_ms)

    def _connector(self, name: str) -> LinearCost:
        if name not in self._connectors:
            self._connectors[name] = self._cost(_prior_of(name), weight=0.1)
        return self._connectors[name]

    def _peer(self, connector: str, worker: WorkerId) -> LinearCost:
        """Return the cost of a peer; a new one starts from the rates of its connector's other
        peers.
        """
        key = (connector, worker)
        if key not in self._peers:
            others = self._connector(connector).rates
            self._peers[key] = self._cost(_prior_of(connector), prior=others, weight=0.1)
            if len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        self._peers.move_to_end(key)
        return self._peers[key]

    def _cost(
        self, scale: Rates, *, prior: Callable[[], Rates] | None = None, weight: float
    ) -> LinearCost:
        return LinearCost(
            scale, prior=prior, prior_weight=weight, half_life_s=HALF_LIFE_S, clock=self._clock
        )


def _prior_of(connector: str) -> Rates:
    return TRANSFER_PRIORS.get(connector, OTHER_PRIOR)
