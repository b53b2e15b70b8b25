"""A routing decision in full: each worker's cost, and why others are excluded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from services.router.routing.places.placement import Place
from services.router.routing.slo import refuse
from shared.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.base import Candidate, Policy, RoutingRequest, Scorer
    from services.router.routing.chooser import Decision
    from services.router.routing.eligible import Candidates
    from services.router.routing.places.placement import Placement


class CandidateCost(msgspec.Struct, kw_only=True):
    """A worker that could serve the request, with its estimates."""

    worker: str
    #: Sum of `terms_ms`; the policy orders by it.
    cost_ms: float
    #: Cost by scorer.
    terms_ms: dict[str, float]
    #: Prompt tokens that it holds, and that it would fetch from a peer.
    num_held_tokens: int
    num_fetched_tokens: int
    #: Expected time to the first token if it computes the prompt.
    ttft_ms: float
    #: Expected time between tokens if it writes the answer.
    itl_ms: float


class CandidateView(CandidateCost, kw_only=True):
    """The same, with its work according to the router's book."""

    num_requests: int
    num_waiting_tokens: int


class RoleView(msgspec.Struct, kw_only=True):
    """The workers of one role, best first."""

    candidates: list[CandidateView]
    #: By worker: the reason why it cannot serve the request.
    left_out: dict[str, str]


class SourceView(msgspec.Struct):
    """A peer that holds more of the prompt than the worker that would compute it."""

    worker: str
    num_blocks: int


class PlacementView(msgspec.Struct, kw_only=True):
    """A way to serve the request that was compared with others."""

    #: handed_over, here (at the worker that writes the answer) or split.
    place: str
    decode: str
    #: The worker that would compute the prompt, or its first `num_handed_tokens` if that is not 0.
    prefill: str
    num_handed_tokens: int
    #: Sum of `terms_ms`; the least is chosen among those without a flaw.
    cost_ms: float
    terms_ms: dict[str, float]
    expected_ttft_ms: float
    expected_itl_ms: float
    #: The longest step of the sequences that decode beside the prompt.
    step_ms: float
    #: Reason for which it is chosen only if all have one; empty: none.
    flaw: str


class RouteView(msgspec.Struct, kw_only=True):
    """The route of the request."""

    #: handed_over, here or split.
    place: str
    decode: str
    prefill: list[str]
    sources: list[SourceView]
    expected_ttft_ms: float
    expected_itl_ms: float


class Explanation(msgspec.Struct, kw_only=True):
    """One decision. Nothing was sent and nothing was booked."""

    policy: str
    num_prompt_tokens: int
    #: Full blocks of the prompt that were hashed; where block sizes differ, the smallest ones.
    num_blocks: int
    decode: RoleView
    prefill: RoleView
    #: None if no worker can take the request. Of a vector, it names a prefill worker alone.
    route: RouteView | None
    #: The reason of a refusal although there are workers.
    refused: str | None
    #: What the route was chosen from, best first; empty if there was no choice of a place.
    placements: list[PlacementView]


def explain(policy: Policy, request: RoutingRequest, decision: Decision) -> Explanation:
    """Return the explanation of a decision."""
    refused = None
    if decision.placement is not None:
        try:
            refuse(request, decision.placement)
        except OverloadedError as error:
            refused = str(error)
    return Explanation(
        policy=policy.name,
        num_prompt_tokens=request.num_prompt_tokens,
        num_blocks=max(map(len, request.block_hashes.values()), default=0),
        decode=_role(request, decision.decode, policy.decode_scorers),
        prefill=_role(request, decision.prefill, policy.prefill_scorers),
        route=_route(decision),
        refused=refused,
        placements=[_placement(placement) for placement in decision.placements],
    )


def explain_readers(policy: Policy, request: RoutingRequest, readers: Candidates) -> Explanation:
    """Return the explanation of a decision on the prefill worker that makes a vector."""
    best = readers.candidates[0] if readers.candidates else None
    route = None
    if best is not None:
        route = RouteView(
            place=Place.HERE.value,
            decode="",
            prefill=[best.endpoint.name],
            sources=[],
            expected_ttft_ms=best.ttft_ms,
            expected_itl_ms=0.0,
        )
    return Explanation(
        policy=policy.name,
        num_prompt_tokens=request.num_prompt_tokens,
        num_blocks=max(map(len, request.block_hashes.values()), default=0),
        decode=RoleView(candidates=[], left_out={}),
        prefill=_role(request, readers, policy.prefill_scorers),
        route=route,
        refused=None,
        placements=[],
    )


def cost_of(
    request: RoutingRequest, candidate: Candidate, scorers: Sequence[Scorer]
) -> CandidateCost:
    """Return the cost of a candidate. Candidates do not change after the decision."""
    terms = {scorer.name: scorer.cost_ms(request, candidate) for scorer in scorers}
    return CandidateCost(
        worker=candidate.endpoint.name,
        cost_ms=sum(terms.values()),
        terms_ms=terms,
        num_held_tokens=candidate.num_held_tokens,
        num_fetched_tokens=candidate.num_fetched_tokens,
        ttft_ms=candidate.ttft_ms,
        itl_ms=candidate.itl_ms,
    )


def _role(request: RoutingRequest, choice: Candidates, scorers: Sequence[Scorer]) -> RoleView:
    return RoleView(
        candidates=[_candidate(request, candidate, scorers) for candidate in choice.candidates],
        left_out={endpoint.name: reason for endpoint, reason in choice.left_out},
    )


def _candidate(
    request: RoutingRequest, candidate: Candidate, scorers: Sequence[Scorer]
) -> CandidateView:
    work = candidate.endpoint.work
    return CandidateView(
        **msgspec.structs.asdict(cost_of(request, candidate, scorers)),
        num_requests=work.num_requests,
        num_waiting_tokens=work.num_waiting_tokens,
    )


def _placement(placement: Placement) -> PlacementView:
    return PlacementView(
        place=placement.place.value,
        decode=placement.writer.endpoint.name,
        prefill=placement.reader.endpoint.name,
        cost_ms=placement.cost_ms,
        num_handed_tokens=0 if placement.split is None else placement.split.num_tokens,
        terms_ms=dict(placement.terms_ms),
        expected_ttft_ms=placement.ttft_ms,
        expected_itl_ms=placement.itl_ms,
        step_ms=placement.reader.step_ms,
        flaw=placement.flaw,
    )


def _route(decision: Decision) -> RouteView | None:
    route, placement = decision.route, decision.placement
    if route is None or placement is None:
        return None
    return RouteView(
        place=placement.place.value,
        decode=route.decode.name,
        prefill=[endpoint.name for endpoint in route.prefill],
        sources=[SourceView(peer.endpoint.name, peer.num_blocks) for peer in route.sources],
        expected_ttft_ms=route.estimate.ttft_ms,
        expected_itl_ms=route.estimate.itl_ms,
    )
