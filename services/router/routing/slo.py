"""Refusal of requests whose bounds no worker is expected to meet, before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import OverloadedError, RefusalReason

if TYPE_CHECKING:
    from services.router.routing.base import Candidate, RoutingRequest
    from services.router.routing.places.placement import Placement

LONGEST_RETRY_S = 60.0
_TTFT = "first token", RefusalReason.EXPECTED_TTFT
_ITL = "time between tokens", RefusalReason.EXPECTED_ITL


def meets_ttft(request: RoutingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates, those expected to meet the TTFT bound first, otherwise in order."""
    bound = request.max_ttft_ms
    if bound is None:
        return candidates
    longest_ms = bound / request.ttft_margin
    return sorted(candidates, key=lambda candidate: candidate.ttft_ms > longest_ms)


def meets_itl(request: RoutingRequest, candidates: list[Candidate]) -> list[Candidate]:
    """Do as `meets_ttft` for the bound on the time between tokens."""
    bound = request.max_itl_ms
    if bound is None:
        return candidates
    return sorted(candidates, key=lambda candidate: candidate.itl_ms > bound)


def refuse(request: RoutingRequest, placement: Placement) -> None:
    """Refuse the request if its best placement is not expected to meet its bounds.

    Raises:
        OverloadedError: a bound would be missed; `retry_after_s` is the expected excess.
    """
    if request.max_ttft_ms is not None:
        ttft_ms = placement.ttft_ms * request.ttft_margin
        if ttft_ms > request.max_ttft_ms:
            raise _overloaded(_TTFT, ttft_ms, request.max_ttft_ms)
    if request.max_itl_ms is not None and placement.itl_ms > request.max_itl_ms:
        raise _overloaded(_ITL, placement.itl_ms, request.max_itl_ms)


def _overloaded(
    what: tuple[str, RefusalReason], expected_ms: float, bound_ms: float
) -> OverloadedError:
    words, reason = what
    message = f"expected {words}: {expected_ms:.0f} ms; at most {bound_ms:.0f} ms are allowed"
    retry_after_s = min(LONGEST_RETRY_S, max(1.0, (expected_ms - bound_ms) / 1000))
    return OverloadedError(message, retry_after_s=retry_after_s, reason=reason)
