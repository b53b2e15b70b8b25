"""Filter, estimate, score, pick: one decode worker and an ordered list of prefill workers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.routing.base import Estimate, PrefixSource, Route
from services.router.routing.book import Book
from services.router.routing.eligible import FILTERS, Candidates, Eligible
from services.router.routing.estimator import Estimator, Holdings
from services.router.routing.filters import handing_to
from services.router.routing.hashes import NO_SPACES, spaces_of
from services.router.routing.newest import Newest
from services.router.routing.places.compare import compared
from services.router.routing.places.mode import PlacementMode
from services.router.routing.places.pair import Pair, gaps_alike, is_pair
from services.router.routing.places.placement import Place, Placement
from services.router.routing.places.returns import Returns, beginning, next_turn
from services.router.routing.policies.cost import policy as cost_policy
from services.router.routing.slo import meets_itl, meets_ttft, refuse
from shared.directory.generations import identity_of
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from services.router.routing.base import (
        Candidate,
        Filter,
        Picker,
        Policy,
        PrefixLookup,
        RoutingRequest,
        Scorer,
    )
    from services.router.routing.hashes import HashSpaces
    from services.router.routing.places.returns import Beginning
    from services.router.routing.trail import Trail
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId

#: Number of prefill workers that a decode worker may try.
MAX_PREFILL_CANDIDATES = 3
#: Number of peers that a worker may ask for a prefix.
MAX_SOURCES = 2
WORKERS = (Role.PREFILL, Role.DECODE)


@dataclass(slots=True)
class Decision:
    """The inputs of one request's decision, and its result: None without a decode worker."""

    decode: Candidates
    prefill: Candidates
    placement: Placement | None = None
    route: Route | None = None
    #: The placements that were compared, best first; empty if there was nothing to compare.
    placements: list[Placement] = field(default_factory=list)
    #: `gaps_alike` of two workers that may do both; None: there are others.
    gaps: float | None = None
    #: What is held of the prompt; None: no placements were compared.
    beginning: Beginning | None = None


class WorkerChooser:
    """Chooses workers by one policy. Sends nothing and books nothing."""

    def __init__(
        self,
        endpoints: Callable[[Role], Sequence[Endpoint]],
        *,
        policy: Policy | None = None,
        prefixes: PrefixLookup | None = None,
        book: Book | None = None,
        peer_fetch: bool = False,
        filters: Sequence[Filter] = FILTERS,
        max_prefill_candidates: int = MAX_PREFILL_CANDIDATES,
        max_worker_queue_ms: float = math.inf,
        mode: PlacementMode = PlacementMode.DISAGGREGATED,
    ) -> None:
        """Choose by a policy among `endpoints`, those that serve a role.

        `peer_fetch`: see Estimator. `max_worker_queue_ms`: see WorkerRoom.
        """
        self._mode = mode
        self._endpoints = endpoints
        self.policy = policy or cost_policy(random.Random())
        self.book = book or Book()
        self._prefixes = prefixes
        self._estimator = Estimator(self.book, peer_fetch=peer_fetch)
        newest = Newest(self.book, max_worker_queue_ms=max_worker_queue_ms)
        self._eligible = Eligible(endpoints, newest, mode=mode, filters=filters)
        self._max_prefill_candidates = max_prefill_candidates
        self._pair = Pair()
        self._returns = Returns()

    def hash_spaces(self) -> HashSpaces:
        """Return what to hash prompts with; empty if routing would not use the hashes."""
        if self._prefixes is None or not self.policy.uses_prefixes:
            return NO_SPACES
        usable = [e.record for e in self._everyone() if e.usable]
        return spaces_of(usable) if len(usable) > 1 else NO_SPACES

    def route(self, request: RoutingRequest, trail: Trail | None = None) -> Route:
        """Return the route of a request, which the caller books; note the decision in `trail`.

        Raises:
            NoWorkerError: no decode worker can take the request now.
            UnsupportedError: the workers that could serve it are too old for its parameters.
            OverloadedError: no worker is expected to meet the request's bounds.
        """
        decision = self.decide(request)
        if trail is not None:
            trail.note(self.policy, request, decision)
        placement = decision.placement
        if decision.route is None or placement is None:
            raise decision.decode.refusal(Role.DECODE)
        refuse(request, placement)
        if decision.gaps is not None:
            self._pair.note(decision.gaps)
        if decision.beginning is not None:
            self._returns.note(decision.beginning)
        self.policy.decode_picker.chosen(placement.writer)
        if placement.readers:
            self.policy.prefill_picker.chosen(placement.reader)
        return decision.route

    def reader(self, request: RoutingRequest) -> Candidate:
        """Return the prefill worker for a prompt of which a vector is wanted; the caller books it.

        Raises:
            NoWorkerError: none can take it now.
        """
        choice = self.readers(request)
        if not choice.candidates:
            raise choice.refusal(Role.PREFILL)
        self.policy.prefill_picker.chosen(choice.candidates[0])
        return choice.candidates[0]

    def readers(self, request: RoutingRequest) -> Candidates:
        """Return the workers for a prompt of which a vector is wanted, best first.

        Those that prefer prefill; if none of them can make it, any that can.
        """
        choice = Candidates()
        makers = self._eligible.makers(request, choice)
        choice.candidates = self._by_policy_readers(request, makers, self._holdings(request))
        return choice

    def is_gone(self, identity: str, excluded: Collection[WorkerId]) -> bool:
        """Return whether only decode workers with other weights remain besides `excluded` ones.

        False for an empty identity.
        """
        alive = self._endpoints(Role.DECODE)
        alike = [e for e in alive if not identity or identity_of(e.record) == identity]
        return len(alike) < len(alive) and not any(
            not e.refusal and e.record.worker not in excluded for e in alike
        )

    def check(self, request: RoutingRequest) -> None:
        """Refuse, before it waits, a request that `route` would refuse for its bounds.

        Raises:
            OverloadedError: no worker is expected to meet the request's bounds.
        """
        placement = self.decide(request).placement
        if placement is not None:
            refuse(request, placement)

    def decide(self, request: RoutingRequest) -> Decision:
        """Return the decision that `route` would make, without side effects."""
        holdings = self._holdings(request)
        decision = Decision(Candidates(), Candidates())
        writers, readers = self._eligible.pair(request, decision.decode, decision.prefill)
        if self._mode is PlacementMode.ELASTIC and writers and readers:
            self._compare(request, writers, readers, holdings, decision)
        else:
            self._divide(request, writers, readers, holdings, decision)
        if decision.placement is not None:
            has_others = bool(readers) or self._mode is PlacementMode.AGGREGATED
            decision.route = self._route(decision.placement, holdings, has_others=has_others)
        return decision

    def _compare(
        self,
        request: RoutingRequest,
        writers: Sequence[Endpoint],
        readers: Sequence[Endpoint],
        holdings: Holdings,
        decision: Decision,
    ) -> None:
        """Decide by the costs of placements: any worker may compute, and any may write."""
        of_pair = is_pair(writers, readers)
        is_alike = of_pair and self._pair.is_alike
        alone = self._by_policy_writers(
            request, writers, holdings, computes=True, by_role=not is_alike
        )
        if of_pair:
            decision.gaps = gaps_alike(request, alone, self.book.answer_tokens)
        if is_alike:
            decision.placements = compared(request, writers=(), readers=(), alone=alone)
            decision.placement = decision.placements[0]
            decision.decode.candidates = [each.writer for each in decision.placements]
            return
        only = self._by_policy_writers(request, writers, holdings, computes=False)
        reading = self._by_policy_readers(request, readers, holdings)
        able = list({each.endpoint: each for each in (*alone, *reading)}.values())
        decision.beginning = beginning(request, able)
        turn = next_turn(able, self._returns, self.book)
        decision.placements = compared(
            request, writers=only, readers=reading, alone=alone, turn=turn
        )
        placement = decision.placement = decision.placements[0]
        writer = placement.writer
        alike = only if placement.place is Place.HANDED_OVER else alone
        decision.decode.candidates = [writer, *(each for each in alike if each is not writer)]
        decision.prefill.candidates = list(placement.readers) or [
            each for each in reading if each.endpoint is not writer.endpoint
        ]

    def _divide(
        self,
        request: RoutingRequest,
        writers: Sequence[Endpoint],
        readers: Sequence[Endpoint],
        holdings: Holdings,
        decision: Decision,
    ) -> None:
        """Decide with `writers` that only write, unless there are no `readers`."""
        decode, prefill = decision.decode, decision.prefill
        decode.candidates = self._by_policy_writers(
            request, writers, holdings, computes=not readers
        )
        if not decode.candidates:
            return
        decode.candidates = meets_itl(request, decode.candidates)
        chosen = decode.candidates[0]
        compatible = self._eligible.kept(request, readers, prefill, handing_to(chosen.endpoint))
        if readers and not compatible:
            # The decode worker has to compute the prompt, which is not in its estimate.
            chosen = self._estimator.decode(request, [chosen.endpoint], holdings, computes=True)[0]
            decode.candidates[0] = chosen
        prefill.candidates = self._by_policy_readers(request, compatible, holdings)
        prefill.candidates = meets_ttft(request, prefill.candidates)
        if not prefill.candidates:
            decode.candidates = meets_ttft(request, decode.candidates)
        decision.placement = Placement(
            writer=decode.candidates[0], readers=tuple(prefill.candidates)
        )

    def _by_policy_writers(
        self,
        request: RoutingRequest,
        writers: Sequence[Endpoint],
        holdings: Holdings,
        *,
        computes: bool,
        by_role: bool = True,
    ) -> list[Candidate]:
        candidates = self._estimator.decode(
            request, writers, holdings, computes=computes, by_role=by_role
        )
        policy = self.policy
        return self._ordered(request, candidates, policy.decode_scorers, policy.decode_picker)

    def _by_policy_readers(
        self, request: RoutingRequest, readers: Sequence[Endpoint], holdings: Holdings
    ) -> list[Candidate]:
        candidates = self._estimator.prefill(request, readers, holdings)
        policy = self.policy
        return self._ordered(request, candidates, policy.prefill_scorers, policy.prefill_picker)

    def _holdings(self, request: RoutingRequest) -> Holdings:
        prefixes = self._prefixes
        if prefixes is None:
            return Holdings({}, request.block_hashes)
        hashes = request.block_hashes
        return Holdings({space: prefixes.lookup(own) for space, own in hashes.items()}, hashes)

    def _route(self, placement: Placement, holdings: Holdings, *, has_others: bool) -> Route:
        writer, reader, split = placement.writer, placement.reader, placement.split
        prefill_ms, work_ms = reader.prefill_ms + reader.stretch_ms, reader.prefill_ms
        if split is not None:
            prefill_ms, work_ms = split.ttft_ms - reader.queue_ms, split.reader_ms
        return Route(
            writer.endpoint,
            tuple(c.endpoint for c in placement.readers[: self._max_prefill_candidates]),
            self._sources(reader, holdings),
            Estimate(
                ttft_ms=max(placement.ttft_ms, writer.adapter_ms),
                prefill_ms=prefill_ms,
                work_ms=work_ms,
                itl_ms=writer.itl_ms,
                adapter_ms=max(reader.adapter_ms, writer.adapter_ms),
            ),
            num_handed_tokens=0 if split is None else split.num_tokens,
            is_kept=has_others and not placement.readers,
        )

    def _sources(self, reader: Candidate, holdings: Holdings) -> tuple[PrefixSource, ...]:
        """Return peers that have reported more blocks than `reader` holds, best first.

        Predicted blocks do not count: they cannot be fetched yet.
        """
        own = reader.endpoint.record
        num_own, reported = reader.num_held_blocks, holdings.reported_in(own.namespace)
        if not any(num_blocks > num_own for num_blocks in reported.values()):
            return ()
        peers = [
            PrefixSource(endpoint, num_blocks)
            for endpoint in self._everyone()
            if (num_blocks := reported.get(endpoint.record.worker, 0)) > num_own
            and endpoint.ready
            and endpoint.record.namespace == own.namespace
        ]
        peers.sort(key=lambda peer: -peer.num_blocks)
        return tuple(peers[:MAX_SOURCES])

    def _everyone(self) -> list[Endpoint]:
        """Return each worker once."""
        return list(dict.fromkeys(e for role in WORKERS for e in self._endpoints(role)))

    def _ordered(
        self,
        request: RoutingRequest,
        candidates: Sequence[Candidate],
        scorers: Sequence[Scorer],
        picker: Picker,
    ) -> list[Candidate]:
        costs = []
        for candidate in candidates:
            cost_ms = 0.0
            for scorer in scorers:
                cost_ms += scorer.cost_ms(request, candidate)
            costs.append((cost_ms, candidate))
        return picker.order(costs)
