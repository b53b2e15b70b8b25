"""A decision as it is logged, put up on the board and shown on the live page."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from services.router.planning.base import Counts, Decision


class ShownDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with its numbers. Pressures beyond all numbers are -1."""

    at_s: float
    requests_per_s: float
    planned_per_s: float
    prompt_tokens: int
    held_tokens: int
    output_tokens: int
    prompt_ms: float
    present_prefill: int
    present_decode: int
    wanted_prefill: int
    wanted_decode: int
    #: How many should be started with each role; see `by_start`.
    desired_prefill: int
    desired_decode: int
    pressure_prefill: float
    pressure_decode: float
    reason: str
    #: The worker that was moved, and what it prefers now; both empty: none.
    moved: str = ""
    moved_to: str = ""
    #: Why a move that was wanted was not made; empty: it was made, or none was wanted.
    not_moved: str = ""
    warnings: tuple[str, ...] = ()


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader puts up for the other routers and for who leads after it."""

    decision: ShownDecision
    num_moves: int
    leader: str


def shown(
    decision: Decision, desired: Counts, *, moved: bool, not_moved: str = ""
) -> ShownDecision:
    """Return a decision as it is shown; `moved`: its move was made."""
    demand, move = decision.demand, decision.move if moved else None
    return ShownDecision(
        at_s=round(time.time(), 3),
        requests_per_s=round(demand.requests_per_s, 3),
        planned_per_s=round(decision.planned_per_s, 3),
        prompt_tokens=round(demand.prompt_tokens),
        held_tokens=round(demand.held_tokens),
        output_tokens=round(demand.output_tokens),
        prompt_ms=round(demand.prompt_ms, 1),
        present_prefill=decision.present.prefill,
        present_decode=decision.present.decode,
        wanted_prefill=decision.wanted.prefill,
        wanted_decode=decision.wanted.decode,
        desired_prefill=desired.prefill,
        desired_decode=desired.decode,
        pressure_prefill=_finite(decision.pressure.prefill),
        pressure_decode=_finite(decision.pressure.decode),
        reason=decision.reason,
        moved="" if move is None else str(move.worker),
        moved_to="" if move is None else move.to.value,
        not_moved=not_moved,
        warnings=decision.warnings,
    )


def _finite(value: float) -> float:
    return round(value, 3) if math.isfinite(value) else -1.0
