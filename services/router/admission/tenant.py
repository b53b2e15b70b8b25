"""Tenants: a request's tenant decides what it may use and which prefixes it may share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One customer of the cluster. None means: no limit of its own."""

    name: str
    #: Share of a crowded cluster, relative to the other tenants'.
    weight: float = 1.0
    #: Requests that may be running or queued at once.
    max_concurrent_requests: int | None = None
    #: Prompt tokens and tokens asked for, in any minute.
    max_tokens_per_minute: int | None = None


#: The tenant of all requests where no keys are configured.
ANONYMOUS = Tenant(name="")
