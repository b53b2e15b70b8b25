"""Estimates for each worker that could serve a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.routing.base import Candidate
from services.router.routing.places.steps import beside
from services.router.workers.timing.work import MOST_SHARE, RECENT_WINDOW_S
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.routing.base import RoutingRequest
    from services.router.routing.book import Book
    from services.router.routing.hashes import BlockHashes
    from services.router.workers.endpoint import Endpoint
    from shared.identity import WorkerId

#: A backlog lasts longer than its work, because more comes meanwhile: by 1 / (1 - load). Taken for
#: a load of 0.7; the measured load would make routing swing where it is near 1.
BACKLOG_STRETCH = 3.3
#: Multiples of the mean recent work. Above the first a worker is penalised; at the second the
#: penalty equals the most that held blocks can save: another worker computes and holds them, too.
WARM, HOT = 1.05, 1.2
#: Requests like this one that are added to each worker's work, so that a few do not make it hot.
HEAT_REQUESTS = 5
#: A worker that is busy for less than this share of the time is hot in part only: while there is
#: little to do, one conversation may well be all the work, and should stay where it is.
BUSY_SHARE = 0.25
#: Milliseconds of one first token that are worth a millisecond by which a sequence without a bound
#: is delayed.
HARM_WEIGHT = 1.5
#: What use in the other role costs, as a share of the prompt's computation: it should save as much.
PREFERENCE_SHARE = 1.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """How much of one prompt each worker holds."""

    #: By namespace: number of leading blocks that each worker has reported.
    reported: Mapping[str, Mapping[WorkerId, int]]
    hashes: BlockHashes

    def reported_in(self, namespace: str) -> Mapping[WorkerId, int]:
        """Return the numbers of a namespace's workers."""
        return self.reported.get(namespace, {})


class Estimator:
    """Converts the book, the profiles and the holdings to milliseconds."""

    def __init__(self, book: Book, *, peer_fetch: bool) -> None:
        """Make an estimator. `peer_fetch`: workers fetch prefixes from peers if that is faster."""
        self._book = book
        self._peer_fetch = peer_fetch

    def prefill(
        self,
        request: RoutingRequest,
        endpoints: Sequence[Endpoint],
        holdings: Holdings,
        *,
        by_role: bool = True,
    ) -> list[Candidate]:
        """Return candidates with estimates for the case that they compute the prompt."""
        now_s = self._book.clock()
        longest = {
            namespace: max(numbers.values(), default=0)
            for namespace, numbers in holdings.reported.items()
        }
        candidates = []
        for endpoint in endpoints:
            candidate = self._candidate(request, endpoint, holdings, now_s)
            there = longest.get(endpoint.record.namespace, 0)
            self._add_prompt(candidate, request, there, now_s)
            _add_beside(candidate, self._book.answer_tokens)
            if by_role:
                _add_preference(candidate, Role.PREFILL, candidate.prefill_ms)
            candidates.append(candidate)
        self._add_adapter(candidates, request, now_s)
        self._add_crowding(candidates, now_s)
        self._add_heat(candidates, request, now_s, by_role=by_role)
        return candidates

    def decode(
        self,
        request: RoutingRequest,
        endpoints: Sequence[Endpoint],
        holdings: Holdings,
        *,
        computes: bool,
        by_role: bool = True,
    ) -> list[Candidate]:
        """Return candidates with estimates for writing the answer.

        `computes`: they compute the prompt, too. Without `by_role` no preference counts.
        """
        now_s = self._book.clock()
        if computes:
            candidates = self.prefill(request, endpoints, holdings, by_role=by_role)
        else:
            candidates = [self._candidate(request, e, holdings, now_s) for e in endpoints]
            self._add_adapter(candidates, request, now_s)
            self._add_batch_heat(candidates, request)
        if by_role:
            self._add_spoils(candidates, request, now_s)
        num_tokens = request.num_prompt_tokens
        for candidate in candidates:
            record, work = candidate.endpoint.record, candidate.endpoint.work
            profile = candidate.endpoint.profile
            if not computes:
                num_moved = num_tokens - candidate.num_held_tokens
                candidate.transfer_ms = profile.transfer_ms(num_moved)
                candidate.exposed_ms = profile.exposed_ms(num_moved)
            num_held = work.num_held_tokens + num_tokens
            num_there = work.num_decoding + work.num_coming + 1
            step_ms = candidate.endpoint.step_ms(num_there, num_held)
            # The rest of its time is that of prompts.
            step_ms /= 1 - work.prompt_share(now_s)
            answer_tokens = min(self._book.answer_tokens, request.max_tokens)
            candidate.place_ms = _place_ms(candidate.endpoint, num_there, answer_tokens * step_ms)
            candidate.itl_ms = step_ms + candidate.place_ms / max(1.0, answer_tokens)
            if by_role:
                _add_drag(candidate, answer_tokens)
                _add_preference(candidate, Role.DECODE, profile.prefill_ms(num_tokens, 0))
            num_over = num_held - record.num_blocks * record.block_size
            if num_over > 0:
                candidate.preemption_ms = profile.prefill_ms(num_over, 0)
        return candidates

    def _candidate(
        self, request: RoutingRequest, endpoint: Endpoint, holdings: Holdings, now_s: float
    ) -> Candidate:
        record = endpoint.record
        hashes = holdings.hashes.get(record.namespace)
        if not hashes:
            return Candidate(endpoint)
        num_blocks = holdings.reported_in(record.namespace).get(record.worker, 0)
        if num_blocks < len(hashes):
            predicted = self._book.predicted.held(record.worker, hashes, now_s)
            num_blocks = max(num_blocks, predicted)
        # The last token is always computed: its logits are the first token.
        num_tokens = min(num_blocks * record.block_size, request.num_prompt_tokens - 1)
        return Candidate(endpoint, num_blocks, num_tokens)

    def _add_prompt(
        self, candidate: Candidate, request: RoutingRequest, longest: int, now_s: float
    ) -> None:
        endpoint, num_held = candidate.endpoint, candidate.num_held_tokens
        num_tokens, profile = request.num_prompt_tokens, endpoint.profile
        candidate.queue_ms = endpoint.work.queue_ms(now_s)
        candidate.prefill_ms = profile.prefill_ms(num_tokens, num_held)
        if not self._peer_fetch:
            return
        num_there = min(longest * endpoint.record.block_size, num_tokens - 1)
        if num_there > num_held:
            transfer_ms = profile.transfer_ms(num_there - num_held)
            prefill_ms = profile.prefill_ms(num_tokens, num_there)
            if transfer_ms + prefill_ms < candidate.prefill_ms:
                candidate.num_fetched_tokens = num_there - num_held
                candidate.transfer_ms, candidate.prefill_ms = transfer_ms, prefill_ms

    def _add_adapter(
        self, candidates: list[Candidate], request: RoutingRequest, now_s: float
    ) -> None:
        if request.adapter is not None:
            for candidate in candidates:
                use = candidate.endpoint.adapters
                candidate.adapter_ms = use.wait_ms(request.adapter.digest, now_s)
                candidate.eviction_ms = use.eviction_ms(request.adapter.digest, now_s)

    def _add_crowding(self, candidates: list[Candidate], now_s: float) -> None:
        """Add the delay of later requests: expected arrivals during the backlog times their wait.

        The backlog is the mean of all workers: with a worker's own, a queue would count twice.
        """
        if not candidates:
            return
        arrivals_per_s = self._book.arrivals.per_s(now_s) / len(candidates)
        per_ms = arrivals_per_s * BACKLOG_STRETCH / 1000
        mean_queue_ms = sum(c.queue_ms for c in candidates) / len(candidates)
        for candidate in candidates:
            work_ms = candidate.prefill_ms
            candidate.crowding_ms = work_ms * (mean_queue_ms + work_ms) * per_ms

    def _add_spoils(
        self, candidates: list[Candidate], request: RoutingRequest, now_s: float
    ) -> None:
        """Add the delay of prompts by the answer, to workers that prefer prefill.

        A prompt that comes while the answer is written finds that worker busy. The next ones come
        there, wherever the latest ones are computed.
        """
        readers = [c for c in candidates if c.endpoint.preference is Role.PREFILL]
        if len(readers) in {0, len(candidates)}:
            return
        share = sum(c.endpoint.work.prompt_share(now_s) for c in candidates) / len(readers)
        share = min(MOST_SHARE, share)
        num_tokens = min(self._book.answer_tokens, request.max_tokens)
        for candidate in readers:
            work = candidate.endpoint.work
            itl_ms = candidate.endpoint.profile.itl_ms(work.num_decoding + 1, work.num_held_tokens)
            candidate.spoil_ms = HARM_WEIGHT * share * num_tokens * itl_ms

    def _add_heat(
        self, candidates: list[Candidate], request: RoutingRequest, now_s: float, *, by_role: bool
    ) -> None:
        """Add a penalty to busy workers, so that a popular prefix is computed on others, too.

        The queue's cost alone does that only when it exceeds what the holder saves. Until then one
        worker would stay nearly saturated while the others have little to do.
        """
        groups = [candidates]
        if by_role:
            groups = [[c for c in candidates if c.endpoint.preference is role] for role in Role]
        for alike in groups:
            if len(alike) > 1:
                self._add_heat_among(alike, request, now_s)

    def _add_heat_among(
        self, candidates: list[Candidate], request: RoutingRequest, now_s: float
    ) -> None:
        num_tokens = request.num_prompt_tokens
        recents = [c.endpoint.work.recent_ms(now_s) for c in candidates]
        mean_ms = sum(recents) / len(candidates)
        for candidate, recent_ms in zip(candidates, recents, strict=True):
            if recent_ms <= WARM * mean_ms:
                continue
            cold_ms = candidate.endpoint.profile.prefill_ms(num_tokens, 0)
            cold_ms += _load_ms(request, candidate)
            some_ms = HEAT_REQUESTS * cold_ms
            heat = (recent_ms + some_ms) / (mean_ms + some_ms)
            if heat > WARM:
                busy = min(1.0, recent_ms / (BUSY_SHARE * RECENT_WINDOW_S * 1000))
                candidate.hot_ms = busy * cold_ms * (heat - WARM) / (HOT - WARM)

    def _add_batch_heat(self, candidates: list[Candidate], request: RoutingRequest) -> None:
        """Do the same for workers that only write answers, by their numbers of requests.

        What a hot one loses is the load of the adapter that it saves: the next one loads it, too.
        """
        if request.adapter is None or len(candidates) < 2:
            return
        numbers = [candidate.endpoint.work.num_requests for candidate in candidates]
        mean = sum(numbers) / len(numbers)
        for candidate, number in zip(candidates, numbers, strict=True):
            heat = (number + HEAT_REQUESTS) / (mean + HEAT_REQUESTS)
            if heat > WARM:
                candidate.hot_ms = _load_ms(request, candidate) * (heat - WARM) / (HOT - WARM)


def _add_beside(candidate: Candidate, answer_tokens: float) -> None:
    """Add what sequences that decode there mean for the prompt, and the prompt for them.

    `answer_tokens`: of an answer on average. The router does not know how much of one is left.
    """
    endpoint = candidate.endpoint
    work = endpoint.work
    # Those that come begin while the prompt waits, or is computed.
    num_decoding = work.num_decoding + work.num_coming
    there = beside(
        candidate.prefill_ms,
        num_decoding=num_decoding,
        num_unbounded=work.num_unbounded,
        itl_ms=endpoint.profile.itl_ms(num_decoding, work.num_held_tokens),
        bound_ms=work.bound_ms,
        least_ms=endpoint.profile.itl_ms(1, 0),
        num_left=answer_tokens,
    )
    candidate.stretch_ms, candidate.step_ms = there.stretch_ms, there.step_ms
    candidate.fits_bound = there.fits
    candidate.harm_ms = HARM_WEIGHT * work.num_unbounded * there.delay_ms


def _add_drag(candidate: Candidate, num_tokens: float) -> None:
    """Add the delay of all prompts that wait there by the steps of an answer of `num_tokens`.

    Beside others that decode, it only makes their steps longer.
    """
    work, profile = candidate.endpoint.work, candidate.endpoint.profile
    num = work.num_decoding + work.num_coming
    step_ms = profile.itl_ms(num + 1, work.num_held_tokens)
    if num:
        step_ms -= profile.itl_ms(num, work.num_held_tokens)
    candidate.drag_ms = work.num_prompts * num_tokens * step_ms


def _place_ms(endpoint: Endpoint, num_sequences: float, answer_ms: float) -> float:
    """Return the wait of the last of these sequences for a place in the worker's batch.

    Places become free evenly, each once in `answer_ms`.
    """
    num_places = endpoint.num_running(num_sequences)
    return (num_sequences - num_places) / num_places * answer_ms


def _add_preference(candidate: Candidate, role: Role, prefill_ms: float) -> None:
    """Set the penalty for use in a role; a later one replaces an earlier one."""
    unlike = candidate.endpoint.preference is not role
    candidate.preference_ms = PREFERENCE_SHARE * prefill_ms if unlike else 0.0


def _load_ms(request: RoutingRequest, candidate: Candidate) -> float:
    """Return the time that another worker would need to load the request's adapter."""
    if request.adapter is None:
        return 0.0
    return candidate.endpoint.adapters.load_ms(request.adapter.digest)
