"""Tenants: a request's tenant decides its limits and which cached prefixes it may share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer of the cluster. None: no limit for this tenant."""

    name: str
    #: Share of a crowded cluster, relative to other tenants.
    weight: float = 1.0
    #: Requests that may run or wait at a time.
    max_concurrent_requests: int | None = None
    #: Prompt tokens plus requested tokens in any minute.
    max_tokens_per_minute: int | None = None


#: The tenant of all requests where no keys are configured.
ANONYMOUS = Tenant(name="")
