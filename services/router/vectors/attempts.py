"""The attempts at one text's vector: on another worker after each loss, if that may succeed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from services.router.answer.retry import Losses, RetryPolicy, reason_of
from services.router.routing.base import Estimate, Route
from services.router.vectors.call import PoolCaller, pool_message
from services.router.vectors.request import FoundVector
from shared.errors import (
    BatonError,
    DeadlineError,
    DrainingError,
    InternalError,
    NoWorkerError,
    WorkerLostError,
)
from shared.identity import Role

if TYPE_CHECKING:
    from services.router.routing.base import Candidate, RoutingRequest
    from services.router.routing.chooser import WorkerChooser
    from services.router.vectors.request import VectorRequest
    from services.router.workers.endpoints import EndpointPool

#: Longest wait for another worker that is alive and not ready, and the interval of checks.
WAIT_FOR_WORKER_S = 3.0
POLL_S = 0.05

log = structlog.get_logger(__name__)


class Attempts:
    """One text of a request, which is admitted already. `run` once."""

    def __init__(
        self,
        request: VectorRequest,
        index: int,
        routing: RoutingRequest,
        *,
        chooser: WorkerChooser,
        endpoints: EndpointPool,
        caller: PoolCaller,
        retries: RetryPolicy,
        deadline_s: float,
    ) -> None:
        """`deadline_s`: of the whole request, on the clock of time.monotonic()."""
        self._request = request
        self._index = index
        self._routing = routing
        self._chooser = chooser
        self._endpoints = endpoints
        self._caller = caller
        self._retries = retries
        self._deadline_s = deadline_s
        self._losses = Losses()

    async def run(self) -> FoundVector:
        """Return the vector.

        If a worker is available nothing is awaited before the text is booked there: admission
        relies on it.

        Raises:
            BatonError: see Vectorizer.
        """
        losses = self._losses
        while True:
            candidate = await self._candidate()
            try:
                return await self._attempt(candidate)
            except BatonError as error:
                self._report(candidate, error)
                losses.add(candidate.endpoint, error, fruitful=False)
                delay_s = self._retries.delay_s(losses, remaining_s=self._remaining_s())
                if delay_s is None:
                    raise
                log.warning(
                    "vector_retried",
                    request_id=self._request.request_id,
                    text=self._index,
                    reason=reason_of(error),
                    lost_worker=str(candidate.endpoint.record.worker),
                    error=str(error),
                )
                await asyncio.sleep(delay_s)

    async def _attempt(self, candidate: Candidate) -> FoundVector:
        endpoint, work = candidate.endpoint, candidate.endpoint.work
        num_tokens = self._routing.num_prompt_tokens
        is_alone = not work.num_prompts and not candidate.adapter_ms
        estimate = Estimate(ttft_ms=candidate.ttft_ms, prefill_ms=candidate.prefill_ms)
        booking = self._chooser.book.begin(
            Route(endpoint, estimate=estimate),
            num_prompt_tokens=num_tokens,
            block_hashes=self._routing.block_hashes,
            adapter=b"" if self._routing.adapter is None else self._routing.adapter.digest,
        )
        suffix = f".{self._losses.num}" if self._losses.num else ""
        message = pool_message(self._request, self._index, suffix=suffix)
        try:
            response = await self._caller(endpoint, message, timeout_s=self._remaining_s())
            booking.end_prompt()
        finally:
            booking.release()
        if is_alone:
            # Otherwise the time is that of other texts, or of a load, too.
            endpoint.profile.observe_prefill(num_tokens, response.cached_tokens, response.pool_ms)
        return FoundVector(
            self._index,
            response.vector.data,
            response.vector.num_rows,
            num_tokens,
            response.cached_tokens,
        )

    async def _candidate(self) -> Candidate:
        """Return the best worker; wait up to `WAIT_FOR_WORKER_S` for one that may come.

        While the workers sleep, that time does not pass.
        """
        lost, waited_s = self._losses.error, 0.0
        while True:
            routing = replace(self._routing, excluded=frozenset(self._losses.workers))
            try:
                return self._chooser.reader(routing)
            except NoWorkerError:
                is_late = waited_s >= WAIT_FOR_WORKER_S
                if not self._endpoints.is_asleep and (is_late or not self._may_come()):
                    if lost is not None:
                        raise lost from None
                    raise
            await asyncio.sleep(min(POLL_S, self._remaining_s()))
            waited_s += 0 if self._endpoints.is_asleep else POLL_S

    def _may_come(self) -> bool:
        alive = [
            e
            for e in self._endpoints.serving(Role.PREFILL)
            if e.preference is Role.PREFILL or e.software.vectors is not None
        ]
        # A worker that failed alone may come back: it is tried again once it answers its canary.
        failed = self._losses.workers
        if failed and all(e.record.worker in failed for e in alive if not e.draining):
            failed.clear()
        return self._endpoints.left_lately(Role.PREFILL) or any(not e.draining for e in alive)

    def _remaining_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError(f"{self._request.request_id} took longer than it may")
        return left_s

    def _report(self, candidate: Candidate, error: BatonError) -> None:
        """Report the error to the pool if it may be the worker's fault."""
        if isinstance(error, WorkerLostError | DrainingError | InternalError | DeadlineError):
            self._endpoints.report_failure(candidate.endpoint, error)
