"""Interfaces of what counts requests: the places of a model, and the limits of tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.router.admission.tenant import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from services.router.admission.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits on admitted and on waiting requests."""

    max_concurrent_requests: int = 256
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1_000_000
    max_queue_s: float = 30.0


@dataclass(slots=True)
class Admitted:
    """An admitted request."""

    queue_ms: float
    #: The holder sets these if workers computed anything: they are charged to the tenant.
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(slots=True)
class Permit:
    """A request that is within its tenant's limits."""

    #: The holder sets this: tokens that the request used, of those set aside for it.
    num_tokens: int = 0


class Entrance(Protocol):
    """The places for requests to one model, and the queue for them.

    `services.router.admission.admission` counts in this process.
    """

    @property
    def num_inside(self) -> int:
        """Requests of this process that were let in and have not ended."""
        ...

    @property
    def num_queued(self) -> int:
        """Requests of this process that wait."""
        ...

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests of this process that wait."""
        ...

    def queue_lengths(self) -> Mapping[str, int]:
        """Return the number of requests of this process that wait, by the name of their tenant."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether no request is admitted."""
        ...

    def hold(self) -> None:
        """Admit no request until `release`: those that arrive wait, as long as others do."""
        ...

    def release(self) -> None:
        """Admit requests again. Safe to repeat."""
        ...

    def look(self) -> None:
        """Admit the next request if a place is free and workers have room. Safe to repeat."""
        ...

    async def expected_wait_s(
        self, num_tokens: int, *, priority: int = 0, tenant: Tenant = ANONYMOUS
    ) -> float:
        """Return the expected wait [s] until a new request of `num_tokens` is admitted."""
        ...

    def enter(
        self,
        num_tokens: int,
        *,
        priority: int = 0,
        tenant: Tenant = ANONYMOUS,
        max_wait_s: float | None = None,
    ) -> AbstractAsyncContextManager[Admitted]:
        """Wait for admission; the request counts as admitted for the context.

        `max_wait_s` bounds the wait if it is shorter than the limit of all requests. The caller
        books the request at its worker before it waits for anything: the next request is let in
        by what is booked then.

        Raises:
            OverloadedError: the queue is full, or requests that precede it filled it, or the wait
                took too long.
            UnavailableError: the workers slept or were paused, or what counts cannot be reached.
        """
        ...


class Quotas(Protocol):
    """The limits of tenants, over all models.

    `services.router.admission.tenant_limits` counts in this process.
    """

    def running(self) -> Mapping[str, int]:
        """Return the number of this process's requests that run or wait, by tenant, if not 0."""
        ...

    def enter(self, tenant: Tenant, num_tokens: int) -> AbstractAsyncContextManager[Permit]:
        """Count a request as running and `num_tokens`, the most that it can use, as used.

        At the end of the context the request no longer counts as running, and only the tokens that
        the caller has entered into the permit count as used.

        Raises:
            OverloadedError: over a limit now; `retry_after_s` is the time until the tokens are
                available, or until one of the tenant's requests should have ended.
            InvalidRequestError: the request alone is over the limit of a minute.
        """
        ...

    def headers(self, tenant: Tenant) -> list[tuple[str, str]]:
        """Return OpenAI's rate-limit headers for the tenant's limits.

        The limit of requests holds at any time, not per minute, so its reset is an expectation.
        """
        ...
