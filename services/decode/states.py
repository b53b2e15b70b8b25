"""Hidden states of prompts that prefill workers compute, for a draft head that reads them here."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import Counter

from baton.v1 import prefill_pb2
from shared.engine.prompt_states import StatesWish
from shared.engine.speculation_config import HandOffPolicy
from shared.errors import TransferError
from shared.worker.peers.incoming import close_inbound
from shared.worker.peers.wire import ticket_to_wire
from shared.worker.reuse.cost_model import PREFILL_PRIOR
from shared.worker.reuse.linear_cost import LinearCost, Rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from shared.engine.prompt_states import PlacedStates, StatesFormat
    from shared.engine.speculation_config import SpeculationConfig
    from shared.request.sampling_params import SamplingParams
    from shared.worker.peers.peers import Peer

#: Before anything was moved: a wait for states behind the KV, and a byte of them. Milliseconds.
_DELAY_PRIOR = Rates(0.5, 3e-7)
_PRIOR_WEIGHT = 0.1
_HALF_LIFE_S = 120.0
#: An answer of fewer tokens ends before guesses could pay.
_MIN_TOKENS = 3


class StatesOutcome(StrEnum):
    """What became of the states that were asked for; the label of a metric."""

    RECEIVED = "received"
    #: The prefill worker had no room for them.
    REFUSED = "refused"
    #: They would have kept the answer waiting.
    LATE = "late"
    FAILED = "failed"


def states_counter(registry: CollectorRegistry) -> Counter:
    """Every decode worker has it, whether it ever asks or not."""
    return Counter(
        "baton_hand_off_states",
        "Prompts whose hidden states were asked for, by what became of them.",
        ["outcome"],
        registry=registry,
    )


class StatesPolicy:
    """Whether states are asked for, and how long they are waited for, by what both took lately."""

    def __init__(
        self,
        wanted: StatesFormat,
        config: SpeculationConfig,
        outcomes: Counter,
        *,
        tokens_per_step: int,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens_per_step`: only the states of a prompt's last step are waited for. `patience_s`:
        how long, if they are to come by all means.
        """
        self._wanted = wanted
        self._always = config.hand_off == HandOffPolicy.TRANSFER
        self._max_share = config.hand_off_max_delay
        self._tokens_per_step = tokens_per_step
        self._patience_s = patience_s
        self._compute, self._delay = (
            LinearCost(prior, prior_weight=_PRIOR_WEIGHT, half_life_s=_HALF_LIFE_S, clock=clock)
            for prior in (PREFILL_PRIOR, _DELAY_PRIOR)
        )
        self._outcomes = outcomes

    def wish(self, num_tokens: int, sampling: SamplingParams) -> StatesWish | None:
        """For a prompt of so many tokens; None: do without."""
        if sampling.num_speculative_tokens == 0 or sampling.max_tokens < _MIN_TOKENS:
            return None
        delay_ms = self._delay.rates().total_ms(1, self._exposed_bytes(num_tokens))
        compute_ms = self._compute.rates().total_ms(1, num_tokens)
        if self._always or delay_ms <= self._max_share * compute_ms:
            return StatesWish(format=self._wanted)
        return None

    def patience_s(self, done: prefill_pb2.PrefillDone) -> float:
        """How long to wait for states once the KV is here."""
        return self._patience_s if self._always else self._max_share * done.compute_ms / 1e3

    def computed(self, num_tokens: int, done: prefill_pb2.PrefillDone) -> None:
        """A prefill worker has computed a prompt of so many tokens, asked for states or not."""
        num_computed = max(0, num_tokens - done.cached_tokens)
        self._compute.observe(1, num_computed, done.compute_ms)

    def waited(self, outcome: StatesOutcome, num_tokens: int, took_s: float) -> None:
        """States of so many tokens were waited for."""
        self._outcomes.labels(outcome.value).inc()
        if outcome in (StatesOutcome.RECEIVED, StatesOutcome.LATE):
            self._delay.observe(1, self._exposed_bytes(num_tokens), took_s * 1e3)

    def _exposed_bytes(self, num_tokens: int) -> int:
        return self._wanted.row_bytes * min(num_tokens, self._tokens_per_step)


class StatesInbox:
    """One transfer of states, beside that of the KV; used once, and always closed."""

    def __init__(
        self,
        policy: StatesPolicy,
        placed: PlacedStates,
        peer: Peer,
        *,
        request_id: str,
        num_tokens: int,
        timeout_s: float,
    ) -> None:
        """Of a prompt of so many tokens."""
        self._policy = policy
        self._placed = placed
        self._num_tokens = num_tokens - placed.first_position
        self._inbound = peer.connector.open(
            request_id=request_id, sender=peer.worker, blocks=placed.blocks
        )
        self._arrival = asyncio.create_task(self._inbound.wait(timeout_s))

    @property
    def wanted(self) -> prefill_pb2.WantedStates:
        """What the prefill worker is asked for."""
        form = self._placed.format
        return prefill_pb2.WantedStates(
            layers=form.layers,
            final=form.final,
            dtype=form.dtype,
            first_position=self._placed.first_position,
            ticket=ticket_to_wire(self._inbound.ticket),
        )

    async def collect(self, done: prefill_pb2.PrefillDone) -> int | None:
        """The KV is here: position of the first token whose states are, if they come in time."""
        began_s = time.monotonic()
        outcome = await self._wait(done)
        self._policy.waited(outcome, self._num_tokens, time.monotonic() - began_s)
        is_here = outcome is StatesOutcome.RECEIVED
        return done.sent_states.first_position if is_here else None

    async def close(self) -> None:
        """Once this returns, nobody writes to the blocks."""
        await close_inbound(self._inbound, self._arrival)

    async def _wait(self, done: prefill_pb2.PrefillDone) -> StatesOutcome:
        if not done.HasField("sent_states"):
            return StatesOutcome.REFUSED
        try:
            async with asyncio.timeout(self._policy.patience_s(done)):
                await self._arrival
        except TimeoutError:
            return StatesOutcome.LATE
        except TransferError:
            return StatesOutcome.FAILED
        return StatesOutcome.RECEIVED
