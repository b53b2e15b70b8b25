"""Tenants: a request's tenant decides its limits and which cached prefixes it may share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    #: Names of the models that it may use; None: all.
    models: frozenset[str] | None = None

    def may_use(self, names: Iterable[str]) -> bool:
        """Return whether it may use a model of these names."""
        return self.models is None or not self.models.isdisjoint(names)


#: The tenant of all requests where no keys are configured.
ANONYMOUS = Tenant(name="")
