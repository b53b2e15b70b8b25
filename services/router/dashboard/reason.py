"""Reasons of a request's route: stored compactly at its end, explained on a viewer's request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from services.router.routing.explain import CandidateCost, cost_of
from services.router.routing.hashes import NO_HASHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.base import Candidate, Policy, RoutingRequest, Scorer
    from services.router.routing.eligible import Candidates
    from services.router.routing.trail import Trail

#: Number of candidates kept per role and request. A cluster may have hundreds of workers.
MAX_CANDIDATES = 8


class RoleChoice(msgspec.Struct, kw_only=True):
    """The workers of one role, best first."""

    candidates: list[CandidateCost]
    #: Number of further candidates.
    num_more: int
    #: By worker: the reason for which it could not serve the request.
    left_out: dict[str, str]


class Why(msgspec.Struct, kw_only=True):
    """A routing decision. The first candidate of a role was chosen, if there are any.

    With the place `here` none for prefill was: the decode worker computed the prompt.
    """

    policy: str
    num_decisions: int
    num_prompt_tokens: int
    #: handed_over, here or split; empty without a route.
    place: str
    decode: RoleChoice
    prefill: RoleChoice


@dataclass(frozen=True, slots=True)
class _Best:
    candidates: tuple[Candidate, ...]
    num_more: int
    left_out: dict[str, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """The stored part of a decision: neither the hashes of the prompt nor all workers."""

    policy: Policy
    request: RoutingRequest
    decode: _Best
    prefill: _Best
    num_decisions: int
    place: str


def kept_part(trail: Trail) -> Kept | None:
    """Return the part to store; None if no decision was made."""
    if trail.policy is None or trail.request is None or trail.decision is None:
        return None
    return Kept(
        trail.policy,
        replace(trail.request, block_hashes=NO_HASHES),
        _best(trail.decision.decode),
        _best(trail.decision.prefill),
        trail.num_decisions,
        "" if trail.decision.placement is None else trail.decision.placement.place.value,
    )


def why(kept: Kept) -> Why:
    """Return the decision with its costs at that time."""
    return Why(
        policy=kept.policy.name,
        num_decisions=kept.num_decisions,
        num_prompt_tokens=kept.request.num_prompt_tokens,
        place=kept.place,
        decode=_role(kept.request, kept.decode, kept.policy.decode_scorers),
        prefill=_role(kept.request, kept.prefill, kept.policy.prefill_scorers),
    )


def _best(choice: Candidates) -> _Best:
    return _Best(
        tuple(choice.candidates[:MAX_CANDIDATES]),
        max(0, len(choice.candidates) - MAX_CANDIDATES),
        {endpoint.name: reason for endpoint, reason in choice.left_out[:MAX_CANDIDATES]},
    )


def _role(request: RoutingRequest, best: _Best, scorers: Sequence[Scorer]) -> RoleChoice:
    return RoleChoice(
        candidates=[cost_of(request, candidate, scorers) for candidate in best.candidates],
        num_more=best.num_more,
        left_out=best.left_out,
    )
