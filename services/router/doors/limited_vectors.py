"""Tenant limits for every request for vectors, and counters of each tenant's use."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from services.router.doors.rate_headers import note_tenant
from shared.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.admission.entrance import Quotas
    from services.router.admission.tenant_metrics import TenantMetrics
    from services.router.vectors.request import FoundVector, Vectorizer, VectorRequest


class LimitedVectorizer:
    """A Vectorizer that applies tenant limits to another one. A request's texts are one request."""

    def __init__(self, vectorizer: Vectorizer, limits: Quotas, metrics: TenantMetrics) -> None:
        self._vectorizer = vectorizer
        self._limits = limits
        self._metrics = metrics

    async def vectors(self, request: VectorRequest) -> AsyncGenerator[FoundVector, None]:
        """See Vectorizer. Tokens of texts that have a vector count, and no others."""
        tenant = request.tenant
        note_tenant(tenant)
        num_tokens = 0
        try:
            async with self._limits.enter(tenant, request.num_tokens) as permit:
                found = cast("AsyncGenerator[FoundVector]", self._vectorizer.vectors(request))
                try:
                    async with aclosing(found) as vectors:
                        async for vector in vectors:
                            num_tokens += vector.num_tokens
                            yield vector
                finally:
                    permit.num_tokens = num_tokens
        except OverloadedError as error:
            self._metrics.refused(tenant.name, error.reason)
            raise
        finally:
            self._metrics.used(tenant.name, num_prompt_tokens=num_tokens, num_output_tokens=0)
