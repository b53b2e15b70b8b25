"""Scorers: the terms of a cost. Each weighs one of the candidate's estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.routing.base import Candidate, RoutingRequest

#: Milliseconds per prompt token that make any load look small: "cache first, then load".
MS_PER_MISSING_TOKEN = 1e6


class Queue:
    """Wait for the prompts that were sent to the worker before."""

    name = "queue"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.queue_ms


class Prefill:
    """Computation of the tokens that the worker does not hold."""

    name = "prefill"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.prefill_ms


class Transfer:
    """Transfer of blocks that the worker lacks and another worker holds or will hold."""

    name = "transfer"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.transfer_ms


class AdapterWait:
    """Time until the request could use its adapter there."""

    name = "adapter"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.adapter_ms


class Eviction:
    """Loads of other adapters that this one would drive out of the worker's memory."""

    name = "eviction"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.eviction_ms


class Crowding:
    """Delay of later requests by this one's computation."""

    name = "crowding"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.crowding_ms


class Beside:
    """What sequences that decode there add to the prompt, and the prompt to them."""

    name = "beside"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.stretch_ms + candidate.harm_ms


class Preference:
    """Use of a worker in the role that it is not preferred for."""

    name = "preference"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.preference_ms


class Heat:
    """Penalty for a worker with much more than an equal share of the work."""

    name = "heat"

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        return candidate.hot_ms


class DecodeLoad:
    """Time of a step, which grows with the batch's sequences and tokens, and preemptions."""

    name = "decode"

    def __init__(self, num_tokens: float) -> None:
        """Weigh the time of a step by the number of slower tokens that one first token is worth."""
        self._num_tokens = num_tokens

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        decode_ms = self._num_tokens * candidate.itl_ms + candidate.preemption_ms
        decode_ms += candidate.place_ms
        return decode_ms + candidate.spoil_ms + candidate.drag_ms


class MissingPrefix:
    """Number of tokens that the worker does not hold, weighted above all other terms.

    A prefix of less than `min_share` of the prompt counts as none. Otherwise one block that all
    prompts begin with would send all of them to the worker that held it first.
    """

    name = "missing prefix"

    def __init__(self, min_share: float) -> None:
        self._min_share = min_share

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """See Scorer."""
        num_held, num_tokens = candidate.num_held_tokens, request.num_prompt_tokens
        if num_held < self._min_share * num_tokens:
            num_held = 0
        return (num_tokens - num_held) * MS_PER_MISSING_TOKEN
