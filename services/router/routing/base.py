"""Interfaces of routing policies. Costs are milliseconds, so that they can be added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.routing.hashes import BlockHashes
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId
    from shared.pooling.facts import PoolTask
    from shared.request.adapter_ref import AdapterRef


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """The data of a request that routing uses."""

    num_prompt_tokens: int
    max_tokens: int
    #: Hashes of the prompt's full blocks; empty: no cache is looked up.
    block_hashes: BlockHashes = field(default_factory=dict)
    #: None: the model itself.
    adapter: AdapterRef | None = None
    #: Workers that failed this request before.
    excluded: frozenset[WorkerId] = frozenset()
    #: Identity of the weights that the answer began with, required of a worker; empty: any.
    identity: str = ""
    #: Lowest minor version of the contract with which a worker understands it.
    protocol_minor: int = 0
    #: Longest acceptable time from now to the first token, and between tokens; None: any.
    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None
    #: Factor on the estimated TTFT before it is compared with its bound.
    ttft_margin: float = 1.0
    #: Whether one worker may compute the prompt's beginning, and another one the rest.
    can_split: bool = True
    #: The kind of vector that is wanted of the prompt; None: an answer is.
    pool_task: PoolTask | None = None


@dataclass(slots=True, eq=False)
class Candidate:
    """A worker that can serve a request, with the router's estimates. Times in milliseconds."""

    endpoint: Endpoint
    #: Leading blocks that the worker holds, or will hold when it computes the request.
    num_held_blocks: int = 0
    #: Prompt tokens in those blocks, less the prompt's last one, which is always computed.
    num_held_tokens: int = 0
    #: Prompt tokens that the worker would fetch from a peer because that takes less time.
    num_fetched_tokens: int = 0
    #: Time until the prompts sent there before are computed.
    queue_ms: float = 0.0
    #: Time to compute tokens that are neither held nor fetched.
    prefill_ms: float = 0.0
    #: Further time that this takes because sequences decode there meanwhile.
    stretch_ms: float = 0.0
    #: The longest step with a chunk of the prompt and the sequences that decode.
    step_ms: float = 0.0
    #: Whether the prompt can be computed within the bound of the sequences that decode there.
    fits_bound: bool = True
    #: Time to move blocks that come from other workers.
    transfer_ms: float = 0.0
    #: Part of the move of a prompt computed elsewhere that its computation does not hide.
    exposed_ms: float = 0.0
    #: Time until the request could use its adapter: its load, and a place in the batch.
    adapter_ms: float = 0.0
    #: Time that other requests lose if their adapters are driven out of the worker's memory.
    eviction_ms: float = 0.0
    #: Delay of other requests' first tokens if this prompt is computed there.
    crowding_ms: float = 0.0
    #: Delay of the sequences that decode there if this prompt is computed beside them, weighed.
    harm_ms: float = 0.0
    #: Expected delay of the sequence by prompts that must be computed beside it, weighed: it takes
    #: the place where they would have been alone.
    spoil_ms: float = 0.0
    #: Delay of the prompts that wait there by the steps that the answer adds.
    drag_ms: float = 0.0
    #: Penalty for use of the worker in the role that it is not preferred for.
    preference_ms: float = 0.0
    #: Penalty for more than an equal share of the work; offsets the gain by what is held there.
    hot_ms: float = 0.0
    #: Time between two tokens with this sequence in the batch. Decode workers only.
    itl_ms: float = 0.0
    #: Time to recompute sequences that are preempted because the KV pool is too small for all.
    preemption_ms: float = 0.0
    #: Wait for a place in the worker's batch, between the first token and the second.
    place_ms: float = 0.0

    @property
    def ttft_ms(self) -> float:
        """Time from now to the first token, if the prompt is computed there."""
        # An adapter is loaded while other prompts are computed.
        waits_ms = max(self.queue_ms, self.adapter_ms)
        return waits_ms + self.transfer_ms + self.prefill_ms + self.stretch_ms


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """A worker that holds a longer prefix than the one that will compute the prompt."""

    endpoint: Endpoint
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The router's estimate for a route."""

    ttft_ms: float = 0.0
    #: The part of `ttft_ms` for the computation; the book uses it until the first token.
    prefill_ms: float = 0.0
    #: The part of that without the sequences that decode beside it; None: all of it.
    work_ms: float | None = None
    itl_ms: float = 0.0
    #: Longest wait for the adapter at one of both workers.
    adapter_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a request."""

    decode: Endpoint
    #: Best first; empty: the decode worker computes the prompt itself.
    prefill: tuple[Endpoint, ...] = ()
    #: Peers that hold more of the prompt than prefill[0] (or the decode worker), best first.
    sources: tuple[PrefixSource, ...] = ()
    estimate: Estimate = Estimate()
    #: Leading tokens that a prefill worker computes, if the decode worker computes the rest.
    num_handed_tokens: int = 0
    #: Whether the decode worker computes the prompt though another worker could.
    is_kept: bool = False


class PrefixLookup(Protocol):
    """The index of the workers that hold each block. In memory: every request uses it."""

    def lookup(self, hashes: Sequence[bytes]) -> Mapping[WorkerId, int]:
        """Return by worker that holds hashes[0]: its leading hashes without a gap."""
        ...


class Filter(Protocol):
    """Excludes workers that cannot serve the request."""

    #: The reason for an exclusion, in a few words.
    reason: str

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """Return whether the worker may be chosen."""
        ...


class Scorer(Protocol):
    """One term of the cost of a choice."""

    #: Name in explanations.
    name: str

    def cost_ms(self, request: RoutingRequest, candidate: Candidate) -> float:
        """Return the expected loss of time [ms] of the request, and of others because of it."""
        ...


class Picker(Protocol):
    """Orders the remaining workers."""

    def order(self, costs: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
        """Return all candidates, best first. No side effects: explanations call it, too."""
        ...

    def chosen(self, candidate: Candidate) -> None:
        """Record that the request is sent to this candidate."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to choose, for both kinds of workers. Made by a function of a file in policies/."""

    name: str
    decode_scorers: tuple[Scorer, ...]
    prefill_scorers: tuple[Scorer, ...]
    decode_picker: Picker
    prefill_picker: Picker
    #: Whether the policy uses which worker holds which block; if not, prompts are not hashed.
    uses_prefixes: bool = True
