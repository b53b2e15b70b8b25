"""What stands between the endpoints and the pipelines: limits of tenants, observers of requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from services.router.admission.tenant import Tenant
from services.router.admission.tenant_metrics import TenantMetrics
from services.router.doors.limited import LimitedGenerator
from services.router.doors.limited_vectors import LimitedVectorizer
from services.router.doors.slow_reader import StallGuard
from services.router.openai.auth import caller_of
from services.router.openai.backend import Backend, Common
from services.router.openai.catalogue import Catalogue
from services.router.openai.http.unknown_fields import UnknownFields
from services.router.vectors.service import Vectors
from services.router.watch.demand import DemandObserver
from services.router.watch.metrics import RequestMeters
from services.router.watch.request_log import RequestLog
from services.router.watch.tracing import RequestTracer
from services.router.watch.watched import WatchedGenerator
from services.router.watch.watched_vectors import VectorMeters, WatchedVectorizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from services.router.admission.caller import Caller
    from services.router.catalogue.pool import Pool, Served
    from services.router.config import RouterConfig
    from services.router.dashboard.state import DashboardState
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper
    from services.router.parts import RouterParts
    from services.router.processes.process import RouterProcess
    from services.router.watch.observer import RequestObserver
    from shared.telemetry.tracing import Tracer


#: What processes of a router ask each other.
ABORT = "abort"


class PoolShelf:
    """See services.router.openai.catalogue.Shelf."""

    def __init__(self, pool: Pool, front: Callable[[Pool, Served], Backend]) -> None:
        """`front` returns what the endpoints use for the pool's model; it is called once a load.

        What it returns must not refer to the `Served` that it is made of.
        """
        self._pool = pool
        self._front = front
        #: Goes with the model.
        self._backends: WeakKeyDictionary[Served, Backend] = WeakKeyDictionary()

    @property
    def names(self) -> tuple[str, ...]:
        """See Shelf."""
        return self._pool.names

    def loaded(self) -> Backend | None:
        """See Shelf."""
        served = self._pool.served
        if served is None:
            return None
        backend = self._backends.get(served)
        if backend is None:
            backend = self._backends[served] = self._front(self._pool, served)
        return backend


class Front:
    """Makes the catalogue. Registers the metrics of requests once, for all models."""

    def __init__(
        self,
        config: RouterConfig,
        parts: RouterParts,
        registry: CollectorRegistry,
        *,
        tracer: Tracer | None = None,
        page: DashboardState | None = None,
        keeper: ResponseKeeper | None = None,
        caller_of: Callable[[Request], Caller] = caller_of,
        process: RouterProcess | None = None,
    ) -> None:
        """Stand before `parts`. `page` and `keeper`: without them there are none.

        `process`: this one, if the router has several.

        `caller_of` returns the caller of an HTTP request.
        """
        self._parts = parts
        self._tracer = tracer
        self._page = page
        self._meters = RequestMeters(registry, None if page is None else page.tokens)
        self._vector_meters = VectorMeters(registry)
        self._tenants = TenantMetrics(queued=self._queued, running=parts.limits.running)
        registry.register(self._tenants)
        self.common = Common(
            limits=config.limits,
            unknown_fields=UnknownFields(strict=config.strict_fields),
            responses=keeper,
            aborter=_Aborter(parts, process),
            explains=True,
            makes_vectors=True,
            caller_of=caller_of,
        )

    def catalogue(self) -> Catalogue:
        """Return all models."""
        return Catalogue(self.common, [PoolShelf(pool, self.backend) for pool in self._parts.pools])

    def backend(self, pool: Pool, served: Served) -> Backend:
        """Return what the endpoints use for requests to the pool's model."""
        config, common = pool.config, self.common
        return Backend(
            generator=WatchedGenerator(self.limited(pool, served), self._observers(pool)),
            tokenizer=served.text.tokenizer,
            chat_template=served.text.chat_template,
            formats=served.text.formats,
            models=served.models,
            explainer=served.planner,
            explains=True,
            vectors=self.vectors(pool, served),
            vector_explainer=served.vectors,
            makes_vectors=True,
            aborter=common.aborter,
            trusts_templates=config.trust_request_chat_template,
            answers=config.answers,
            embeds=config.embeds_policy,
            responses=common.responses,
            limits=config.limits,
            cold_start=pool.parts.cold_start,
            unknown_fields=common.unknown_fields,
            caller_of=common.caller_of,
        )

    def vectors(self, pool: Pool, served: Served) -> Vectors:
        """Return what makes vectors, behind the limits of tenants and the observers."""
        limited = LimitedVectorizer(served.vectors, self._parts.limits, self._tenants)
        meter = self._vector_meters.of(pool.name)
        return Vectors(
            vectorizer=WatchedVectorizer(limited, meter, logs=pool.config.log_requests),
            tokenizer=served.text.tokenizer,
            chat_template=served.text.chat_template,
            models=served.models,
            offered=pool.endpoints.offered_vectors,
            hidden_size=served.text.hidden_size,
            limits=pool.config.limits,
        )

    def limited(self, pool: Pool, served: Served) -> LimitedGenerator:
        """Return the pipeline behind the limits of tenants, which are those of all models."""
        return LimitedGenerator(
            StallGuard(served.pipeline, max_stall_s=pool.config.max_client_stall_s),
            self._parts.limits,
            self._tenants,
            max_model_len=served.models.learn_max_model_len,
        )

    def _observers(self, pool: Pool) -> list[RequestObserver]:
        observers: list[RequestObserver] = [self._meters.of(pool.name)]
        if pool.parts.planner is not None:
            observers.append(DemandObserver(pool.parts.planner.view))
        if self._page is not None:
            observers.append(self._page)
        if pool.config.log_requests:
            observers.append(RequestLog())
        if self._tracer is not None:
            observers.append(RequestTracer(self._tracer, model=pool.name))
        return observers

    def _queued(self) -> Counter[str]:
        """Return the number of requests that wait, by tenant."""
        queued: Counter[str] = Counter()
        for pool in self._parts.pools:
            queued.update(pool.admission.queue_lengths())
        return queued


class _Aborter:
    """See Aborter. A name of a request says nothing of its model, and nothing of its process."""

    def __init__(self, parts: RouterParts, process: RouterProcess | None) -> None:
        self._parts = parts
        self._process = process
        if process is not None:
            process.on_ask(ABORT, self._abort_asked)

    async def abort(self, names: Collection[str] | None, *, tenant: Tenant | None) -> int:
        """See Aborter."""
        number = self._abort_own(names, tenant)
        if self._process is not None:
            told = None if names is None else list(names)
            of = None if tenant is None else tenant.name
            number += sum(await self._process.ask_others(ABORT, [told, of]))
        return number

    async def _abort_asked(self, body: Sequence[Any]) -> int:
        names, of = body
        tenant = None if of is None else Tenant(name=of)
        return self._abort_own(None if names is None else frozenset(names), tenant)

    def _abort_own(self, names: Collection[str] | None, tenant: Tenant | None) -> int:
        return sum(
            pool.served.pipeline.abort(names, tenant=tenant)
            + pool.served.vectors.abort(names, tenant=tenant)
            for pool in self._parts.pools
            if pool.served is not None
        )
