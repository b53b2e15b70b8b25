"""Make vectors: at most so many texts of a request at a time, each admitted and routed alone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from services.router.answer.retry import RetryPolicy
from services.router.routing.base import RoutingRequest
from services.router.routing.explain import explain_readers
from services.router.routing.hashes import NO_HASHES, hashed
from services.router.vectors.attempts import Attempts
from shared.errors import RequestCancelledError
from shared.request.prompt_embeds import identity_of
from shared.rpc.protocol import ADAPTED_VECTORS_MINOR, POOLING_MINOR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from services.router.admission.entrance import Entrance
    from services.router.admission.tenant import Tenant
    from services.router.routing.chooser import WorkerChooser
    from services.router.routing.explain import Explanation
    from services.router.routing.hashes import BlockHashes
    from services.router.vectors.call import PoolCaller
    from services.router.vectors.request import FoundVector, VectorRequest
    from services.router.workers.endpoints import EndpointPool
    from shared.pooling.texts.text_input import VectorInput

#: Texts of one request that wait or are computed at a time.
MAX_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class _Running:
    request: VectorRequest
    #: Its texts that have ended; None: the request was aborted.
    ended: asyncio.Queue[asyncio.Task[FoundVector] | None] = field(default_factory=asyncio.Queue)


class VectorPipeline:
    """The Vectorizer behind both front ends; see services/router/vectors/request.py."""

    def __init__(
        self,
        *,
        chooser: WorkerChooser,
        admission: Entrance,
        endpoints: EndpointPool,
        caller: PoolCaller,
        request_timeout_s: float,
    ) -> None:
        self._chooser = chooser
        self._admission = admission
        self._endpoints = endpoints
        self._caller = caller
        self._request_timeout_s = request_timeout_s
        self._retries = RetryPolicy()
        self._running: set[_Running] = set()

    async def vectors(self, request: VectorRequest) -> AsyncGenerator[FoundVector, None]:
        """See Vectorizer."""
        self._retries.budget.earn()
        deadline_s = (request.arrival_s or time.monotonic()) + self._request_timeout_s
        texts = iter(enumerate(request.inputs))
        own = _Running(request)
        ended = own.ended
        running: set[asyncio.Task[FoundVector]] = set()

        def begin_next() -> None:
            for index, text in texts:
                task = asyncio.create_task(self._vector(request, index, text, deadline_s))
                running.add(task)
                task.add_done_callback(ended.put_nowait)
                return

        self._running.add(own)
        try:
            for _ in range(MAX_AT_ONCE):
                begin_next()
                # Its blocks' hashes and its route are found before those of the next one.
                await asyncio.sleep(0)
            while running:
                task = await ended.get()
                if task is None:
                    raise RequestCancelledError(f"request {request.request_id} was aborted")
                running.discard(task)
                yield task.result()
                begin_next()
        finally:
            self._running.discard(own)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def abort(self, names: Collection[str] | None, *, tenant: Tenant | None) -> int:
        """End the requests with one of these names, or all (None); return how many.

        They fail with RequestCancelledError. `tenant`: only its requests; None: those of all.
        """
        found = [
            own
            for own in self._running
            if (names is None or any(name in names for name in own.request.names))
            and (tenant is None or tenant.name == own.request.tenant.name)
        ]
        for own in found:
            own.ended.put_nowait(None)
        return len(found)

    def explain(self, request: VectorRequest) -> Explanation:
        """See VectorExplainer."""
        routing = self._routing(request, request.inputs[0])
        return explain_readers(self._chooser.policy, routing, self._chooser.readers(routing))

    async def _vector(
        self, request: VectorRequest, index: int, text: VectorInput, deadline_s: float
    ) -> FoundVector:
        """Return the vector of one text, once it is admitted."""
        attempts = Attempts(
            request,
            index,
            self._routing(request, text),
            chooser=self._chooser,
            endpoints=self._endpoints,
            caller=self._caller,
            retries=self._retries,
            deadline_s=deadline_s,
        )
        num_tokens = len(text.token_ids)
        entry = self._admission.enter(num_tokens, priority=request.priority, tenant=request.tenant)
        async with entry as place:
            found = await attempts.run()
            place.num_prompt_tokens = num_tokens
            return found

    def _routing(self, request: VectorRequest, text: VectorInput) -> RoutingRequest:
        return RoutingRequest(
            num_prompt_tokens=len(text.token_ids),
            max_tokens=0,
            block_hashes=self._hashes(request, text),
            adapter=request.adapter,
            protocol_minor=POOLING_MINOR if request.adapter is None else ADAPTED_VECTORS_MINOR,
            pool_task=request.task,
        )

    def _hashes(self, request: VectorRequest, text: VectorInput) -> BlockHashes:
        if not request.is_causal:
            return NO_HASHES
        adapter = b"" if request.adapter is None else request.adapter.digest
        identify = partial(identity_of, salt=request.cache_salt, embeds=None, adapter=adapter)
        return hashed(self._chooser.hash_spaces(), text.token_ids, identify)
