"""Decides about a request before it is sent: its parameters, its blocks' hashes, its route."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.job import Job
from services.router.routing.base import RoutingRequest
from services.router.routing.explain import explain
from services.router.ttft_margin import TtftMargin
from shared.errors import BatonError, InvalidRequestError
from shared.kv.block_hash import hash_blocks, root_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.generation import GenerationRequest
    from services.router.models import ServedModels
    from services.router.routing.base import Route
    from services.router.routing.explain import Explanation
    from services.router.routing.scheduler import Scheduler
    from services.router.sampling import SamplingResolver
    from shared.identity import WorkerId

_INT32 = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBounds:
    """What every request must be expected to meet. None: anything."""

    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None


class Planner:
    """The Explainer behind the HTTP front end; see services/router/generation.py."""

    def __init__(
        self,
        *,
        models: ServedModels,
        sampling: SamplingResolver,
        scheduler: Scheduler,
        request_timeout_s: float,
        bounds: LatencyBounds | None = None,
    ) -> None:
        self._models = models
        self._sampling = sampling
        self._scheduler = scheduler
        self._request_timeout_s = request_timeout_s
        self._bounds = bounds or LatencyBounds()
        self.margin = TtftMargin()

    def plan(self, request: GenerationRequest, request_id: str) -> Job:
        """Everything that can be refused without asking anybody.

        Raises:
            InvalidRequestError: a parameter is wrong.
        """
        self._models.resolve(request.model)
        if not -_INT32 <= request.priority < _INT32:
            message = f"priority must fit 32 bits, not {request.priority}"
            raise InvalidRequestError(message, param="priority")
        sampling = self._sampling.resolve(
            request.params,
            prompt_token_ids=request.prompt_token_ids,
            max_model_len=self._models.max_model_len,
        )
        return Job(
            request=request,
            sampling=sampling,
            request_id=request_id,
            arrival_s=request.arrival_s or time.monotonic(),
            timeout_s=self._request_timeout_s,
            max_ttft_ms=_tighter(request.max_ttft_ms, self._bounds.max_ttft_ms),
            max_itl_ms=_tighter(request.max_itl_ms, self._bounds.max_itl_ms),
            margin=self.margin,
        )

    def check(self, job: Job, *, wait_s: float) -> None:
        """Refuse at once what would be too late after a wait of `wait_s` for its place.

        Raises:
            OverloadedError: nobody is expected to meet the request's bounds.
        """
        if job.max_ttft_ms is not None or job.max_itl_ms is not None:
            self._scheduler.check(self._routing_request(job, wait_s=wait_s))

    def route(self, job: Job, lost: tuple[WorkerId, BatonError] | None) -> Route:
        """Where to send it; `lost` is the worker that failed it before, and how.

        If nobody is left to try again on, the first error tells more than that.

        Raises:
            NoWorkerError: no decode worker can take it now.
            OverloadedError: nobody is expected to meet the request's bounds.
        """
        started_s = time.monotonic()
        try:
            route = self._scheduler.route(self._routing_request(job, lost))
        except BatonError as error:
            if lost is not None:
                raise lost[1] from error
            raise
        job.routed_s = time.monotonic()
        job.route_ms += (job.routed_s - started_s) * 1000
        job.estimated_ttft_ms = route.estimate.ttft_ms
        return route

    def explain(self, request: GenerationRequest) -> Explanation:
        """See Explainer."""
        routing = self._routing_request(self.plan(request, request.request_id))
        return explain(self._scheduler.policy, routing, self._scheduler.decide(routing))

    def _routing_request(
        self,
        job: Job,
        lost: tuple[WorkerId, BatonError] | None = None,
        *,
        wait_s: float = 0.0,
    ) -> RoutingRequest:
        max_ttft_ms = job.max_ttft_ms
        if max_ttft_ms is not None:
            spent_s = time.monotonic() - job.arrival_s
            max_ttft_ms = max(0.0, max_ttft_ms - (spent_s + wait_s) * 1000)
        # Work has been done for a request that is tried again: bounds no longer refuse it.
        again = lost is not None
        return RoutingRequest(
            num_prompt_tokens=job.num_prompt_tokens,
            max_tokens=job.sampling.max_tokens,
            block_hashes=self._block_hashes(job),
            excluded=frozenset() if lost is None else frozenset({lost[0]}),
            max_ttft_ms=None if again else max_ttft_ms,
            max_itl_ms=None if again else job.max_itl_ms,
            ttft_margin=self.margin.factor,
        )

    def _block_hashes(self, job: Job) -> Sequence[bytes]:
        """Once per request."""
        if job.block_hashes is None:
            space = self._scheduler.hash_space()
            # Logprobs of the prompt need its computation: they turn reuse off.
            if space is None or job.sampling.prompt_logprobs is not None:
                job.block_hashes = ()
            else:
                namespace, block_size = space
                root = root_hash(namespace, cache_salt=job.request.cache_salt)
                job.block_hashes = hash_blocks(root, job.request.prompt_token_ids, block_size)
        return job.block_hashes


def _tighter(one: float | None, other: float | None) -> float | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)
