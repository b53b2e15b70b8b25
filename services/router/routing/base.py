"""What routing policies look like. Costs are milliseconds, so that they can be added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.endpoint import Endpoint
    from shared.identity import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRequest:
    """What routing knows of a request."""

    num_prompt_tokens: int
    max_tokens: int
    #: Workers that failed this request before.
    excluded: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes."""

    decode: Endpoint
    #: Best first; empty: the decode worker computes the prompt itself.
    prefill: tuple[Endpoint, ...] = ()


class Filter(Protocol):
    """Takes out workers that cannot serve the request."""

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """Whether the worker may be chosen."""
        ...


class Scorer(Protocol):
    """Estimates one part of what a choice would cost."""

    def cost_ms(self, request: RoutingRequest, endpoint: Endpoint) -> float:
        """Expected milliseconds that the request, or others because of it, would lose there."""
        ...


class Picker(Protocol):
    """Orders the workers that are left."""

    def order(self, costs: Sequence[tuple[float, Endpoint]]) -> list[Endpoint]:
        """All of them, best first."""
        ...
