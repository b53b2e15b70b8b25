"""Hidden states of prompts that prefill workers compute, for a draft head that reads them here."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import Counter

from baton.v1 import prefill_pb2
from shared.engine.prompt_hidden import HiddenWish
from shared.engine.settings.speculation import HandOffPolicy
from shared.errors import TransferError
from shared.worker.peers.incoming import close_inbound
from shared.worker.peers.wire import ticket_to_wire
from shared.worker.reuse.cost_model import PREFILL_PRIOR
from shared.worker.reuse.linear_cost import LinearCost, Rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from shared.connector.base import InboundTransfer
    from shared.engine.prompt_hidden import HiddenFormat, PlacedHidden
    from shared.engine.settings.speculation import SpeculationConfig
    from shared.request.sampling_params import SamplingParams
    from shared.worker.peers.peers import Peer

#: Initial estimate of the wait for states after the KV: milliseconds per prompt and per byte.
_DELAY_PRIOR = Rates(0.5, 3e-7)
_PRIOR_WEIGHT = 0.1
_HALF_LIFE_S = 120.0
#: An answer of fewer tokens ends before guesses could pay.
_MIN_TOKENS = 3


class HiddenOutcome(StrEnum):
    """What became of the states that were asked for; the label of a metric."""

    RECEIVED = "received"
    #: The prefill worker had no room for them.
    REFUSED = "refused"
    #: They would have kept the answer waiting.
    LATE = "late"
    FAILED = "failed"


def states_counter(registry: CollectorRegistry) -> Counter:
    """Return the counter of states by outcome; each decode worker registers it at its start."""
    return Counter(
        "baton_hand_off_states",
        "Prompts whose hidden states were asked for, by what became of them.",
        ["outcome"],
        registry=registry,
    )


class HiddenPolicy:
    """Decides whether to request states and how long to wait, from recent costs of both."""

    def __init__(
        self,
        wanted: HiddenFormat,
        config: SpeculationConfig,
        outcomes: Counter,
        *,
        tokens_per_step: int,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens_per_step` bounds the states that a wait is for: those of a prompt's last step.

        `patience_s`: longest wait if the configuration always transfers states.
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

    def wish(self, num_tokens: int, sampling: SamplingParams) -> HiddenWish | None:
        """Return which states to request for a prompt of `num_tokens`; None: request none."""
        if sampling.num_speculative_tokens == 0 or sampling.max_tokens < _MIN_TOKENS:
            return None
        delay_ms = self._delay.rates().total_ms(1, self._exposed_bytes(num_tokens))
        compute_ms = self._compute.rates().total_ms(1, num_tokens)
        if self._always or delay_ms <= self._max_share * compute_ms:
            return HiddenWish(format=self._wanted)
        return None

    def patience_s(self, done: prefill_pb2.PrefillDone) -> float:
        """Return how long to wait for states after the KV has arrived."""
        return self._patience_s if self._always else self._max_share * done.compute_ms / 1e3

    def computed(self, num_tokens: int, done: prefill_pb2.PrefillDone) -> None:
        """Learn what a prefill worker took for a prompt, with or without states."""
        num_computed = max(0, num_tokens - done.cached_tokens)
        self._compute.observe(1, num_computed, done.compute_ms)

    def waited(self, outcome: HiddenOutcome, num_tokens: int, took_s: float) -> None:
        """Count the outcome of a wait for states of `num_tokens`, and learn how long it took."""
        self._outcomes.labels(outcome.value).inc()
        if outcome in (HiddenOutcome.RECEIVED, HiddenOutcome.LATE):
            self._delay.observe(1, self._exposed_bytes(num_tokens), took_s * 1e3)

    def _exposed_bytes(self, num_tokens: int) -> int:
        return self._wanted.row_bytes * min(num_tokens, self._tokens_per_step)


class HiddenInbox:
    """One transfer of states, beside that of the KV; used once, and always closed."""

    def __init__(
        self,
        policy: HiddenPolicy,
        placed: PlacedHidden,
        inbound: InboundTransfer,
        *,
        num_tokens: int,
        timeout_s: float,
    ) -> None:
        """Begin to wait for `inbound`, which brings the states of a prompt of `num_tokens`."""
        self._policy = policy
        self._placed = placed
        self._num_tokens = num_tokens - placed.first_position
        self._inbound = inbound
        self._arrival = asyncio.create_task(self._inbound.wait(timeout_s))

    @classmethod
    async def open(
        cls,
        policy: HiddenPolicy,
        placed: PlacedHidden,
        peer: Peer,
        *,
        request_id: str,
        num_tokens: int,
        timeout_s: float,
    ) -> HiddenInbox:
        """Open the transfer for the states of a prompt of `num_tokens`."""
        inbound = await peer.connectors[0].open(
            request_id=request_id, sender=peer.worker, blocks=placed.blocks
        )
        return cls(policy, placed, inbound, num_tokens=num_tokens, timeout_s=timeout_s)

    @property
    def wanted(self) -> prefill_pb2.WantedStates:
        """The states that the prefill worker is to send, with the ticket."""
        form = self._placed.format
        return prefill_pb2.WantedStates(
            layers=form.layers,
            final=form.final,
            dtype=form.dtype,
            first_position=self._placed.first_position,
            ticket=ticket_to_wire(self._inbound.ticket),
        )

    async def collect(self, done: prefill_pb2.PrefillDone) -> int | None:
        """Wait for the states, after the KV has arrived.

        Returns the position of the first token that has states; None if they failed or are late.
        """
        began_s = time.monotonic()
        outcome = await self._wait(done)
        self._policy.waited(outcome, self._num_tokens, time.monotonic() - began_s)
        is_here = outcome is HiddenOutcome.RECEIVED
        return done.sent_states.first_position if is_here else None

    async def close(self) -> None:
        """Close the transfer. After this returns, the sender writes to no block."""
        await close_inbound(self._inbound, self._arrival)

    async def _wait(self, done: prefill_pb2.PrefillDone) -> HiddenOutcome:
        if not done.HasField("sent_states"):
            return HiddenOutcome.REFUSED
        try:
            async with asyncio.timeout(self._policy.patience_s(done)):
                await self._arrival
        except TimeoutError:
            return HiddenOutcome.LATE
        except TransferError:
            return HiddenOutcome.FAILED
        return HiddenOutcome.RECEIVED
