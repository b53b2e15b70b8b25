"""The workers that can take a request, by role, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.routing.filters import (
    Accepted,
    Awake,
    FitsContext,
    Makes,
    NotDraining,
    NotExcluded,
    Ready,
    SameIdentity,
    ServesAdapters,
    Understands,
)
from services.router.routing.places.mode import PlacementMode
from services.router.workers.endpoint import preferring
from shared.errors import NoWorkerError, UnsupportedError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.routing.base import Candidate, Filter, RoutingRequest
    from services.router.routing.newest import Newest
    from services.router.workers.endpoint import Endpoint

OTHER_GENERATION = "not of the generation that takes new answers"
FILTERS: tuple[Filter, ...] = (
    Accepted(),
    SameIdentity(),
    Awake(),
    NotDraining(),
    Ready(),
    NotExcluded(),
    FitsContext(),
    Understands(),
    ServesAdapters(),
    Makes(),
)


@dataclass(slots=True)
class Candidates:
    """The workers of one role: the remaining ones, best first, and why others are excluded."""

    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[tuple[Endpoint, str]] = field(default_factory=list)

    def refusal(self, role: Role) -> NoWorkerError | UnsupportedError:
        """Return the error for a request that no worker of the role can take."""
        old = [endpoint.name for endpoint, reason in self.left_out if reason == Understands.reason]
        if role is Role.DECODE and old:
            # They are the ones that serve it, so waiting does not help.
            return UnsupportedError(
                "structured output, required tools, extra_args and adapters need workers of a "
                f"newer version than {', '.join(old)}"
            )
        if not self.left_out:
            return NoWorkerError(f"no {role.value} worker is registered")
        states = ", ".join(f"{endpoint.name} is {reason}" for endpoint, reason in self.left_out)
        return NoWorkerError(f"no {role.value} worker can take the request: {states}")


class Eligible:
    """Finds the workers that pass the filters and are of the generation that takes new answers.

    Each method notes in a choice the workers that are left out, with the reason.
    """

    def __init__(
        self,
        endpoints: Callable[[Role], Sequence[Endpoint]],
        newest: Newest,
        *,
        mode: PlacementMode,
        filters: Sequence[Filter] = FILTERS,
    ) -> None:
        """Find them among `endpoints`, those that serve a role."""
        self._endpoints = endpoints
        self._newest = newest
        self._mode = mode
        self._filters = tuple(filters)

    def pair(
        self, request: RoutingRequest, decode: Candidates, prefill: Candidates
    ) -> tuple[Sequence[Endpoint], Sequence[Endpoint]]:
        """Return those that may write the answer, and those that may compute its prompt for them.

        Both are of one generation.
        """
        writers = self._writers(request, decode)
        readers = self._readers(request, writers, prefill)
        taking = self._newest.pick(writers, readers, request.num_prompt_tokens)
        _leave_out_others(writers, taking[0], decode)
        _leave_out_others(readers, taking[1], prefill)
        return taking

    def makers(self, request: RoutingRequest, choice: Candidates) -> Sequence[Endpoint]:
        """Return those that may compute a prompt of which a vector is wanted."""
        kept = self._able(request, Role.PREFILL, choice)
        taking = self._newest.pick_readers(kept)
        _leave_out_others(kept, taking, choice)
        return taking

    def kept(
        self,
        request: RoutingRequest,
        endpoints: Sequence[Endpoint],
        choice: Candidates,
        filters: Sequence[Filter] | None = None,
    ) -> list[Endpoint]:
        """Return the endpoints that all filters keep. None: those that every request passes."""
        kept = []
        for endpoint in endpoints:
            for rule in self._filters if filters is None else filters:
                if not rule.keeps(request, endpoint):
                    choice.left_out.append((endpoint, rule.reason))
                    break
            else:
                kept.append(endpoint)
        return kept

    def _able(self, request: RoutingRequest, role: Role, choice: Candidates) -> list[Endpoint]:
        """Return those that prefer the role and can serve the request; if none can, all that can.

        A role is a preference: without a decode worker, prefill workers write the answers.
        """
        alive = self._endpoints(role)
        kept = self.kept(request, preferring(alive, role), choice)
        if kept:
            return kept
        others = [endpoint for endpoint in alive if endpoint.preference is not role]
        return self.kept(request, others, choice)

    def _writers(self, request: RoutingRequest, choice: Candidates) -> list[Endpoint]:
        if self._mode is PlacementMode.DISAGGREGATED:
            return self._able(request, Role.DECODE, choice)
        return self.kept(request, self._endpoints(Role.DECODE), choice)

    def _readers(
        self, request: RoutingRequest, writers: Sequence[Endpoint], choice: Candidates
    ) -> list[Endpoint]:
        if self._mode is PlacementMode.AGGREGATED:
            return []
        alive = self._endpoints(Role.PREFILL)
        if self._mode is PlacementMode.DISAGGREGATED:
            # Without a decode worker, each of those that write in its place computes its own
            # prompts.
            alive = preferring([each for each in alive if each not in writers], Role.PREFILL)
        return self.kept(request, alive, choice)


def _leave_out_others(
    usable: Sequence[Endpoint], taken: Sequence[Endpoint], choice: Candidates
) -> None:
    if taken is not usable:
        choice.left_out += [(e, OTHER_GENERATION) for e in usable if e not in taken]
