"""A tenant's limits: requests at a time, tokens per minute. Each router counts alone.

Behind several routers a tenant may use its limits once per router, so configure a share of them.
"""

from __future__ import annotations

import math
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.admission.entrance import Permit
from shared.errors import InvalidRequestError, OverloadedError, RefusalReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.router.admission.tenant import Tenant

MINUTE_S = 60.0
#: Weight of the newest request in the average time of a request.
_NEWEST_WEIGHT = 0.1
#: Above this number of accounts, accounts equal to a new one are dropped.
_MANY_ACCOUNTS = 1024


@dataclass(slots=True)
class _Account:
    num_running: int = 0
    request_s: float = 1.0
    #: Tokens used within the last minute; they drain evenly.
    num_used: float = 0.0
    at_s: float = 0.0

    def drain(self, now_s: float, per_minute: int) -> None:
        drained = (now_s - self.at_s) * per_minute / MINUTE_S
        self.num_used = max(0.0, self.num_used - drained)
        self.at_s = now_s


class TenantLimits:
    """See Quotas. Concurrent requests, and a token bucket that holds one minute's tokens."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def running(self) -> dict[str, int]:
        """See Quotas."""
        return {name: a.num_running for name, a in self._accounts.items() if a.num_running}

    @asynccontextmanager
    async def enter(self, tenant: Tenant, num_tokens: int) -> AsyncIterator[Permit]:
        """See Quotas. Nothing is awaited here."""
        account = self._account(tenant)
        self._take(tenant, account, num_tokens)
        account.num_running += 1
        started_s = self._clock()
        permit = Permit()
        try:
            yield permit
        finally:
            now_s = self._clock()
            account.num_running -= 1
            account.request_s += _NEWEST_WEIGHT * (now_s - started_s - account.request_s)
            if tenant.max_tokens_per_minute is not None:
                account.drain(now_s, tenant.max_tokens_per_minute)
                account.num_used += permit.num_tokens - num_tokens

    def headers(self, tenant: Tenant) -> list[tuple[str, str]]:
        """See Quotas."""
        account = self._account(tenant)
        pairs: list[tuple[str, str]] = []
        limit = tenant.max_concurrent_requests
        if limit is not None:
            reset_s = account.request_s if account.num_running else 0.0
            pairs += _headers("requests", limit, limit - account.num_running, reset_s)
        limit = tenant.max_tokens_per_minute
        if limit is not None:
            account.drain(self._clock(), limit)
            reset_s = max(0.0, account.num_used) / limit * MINUTE_S if limit else 0.0
            pairs += _headers("tokens", limit, math.floor(limit - account.num_used), reset_s)
        return pairs

    def _take(self, tenant: Tenant, account: _Account, num_tokens: int) -> None:
        limit = tenant.max_concurrent_requests
        if limit is not None and account.num_running >= limit:
            raise OverloadedError(
                f"{account.num_running} of your requests are running; at most {limit} may",
                retry_after_s=min(MINUTE_S, max(1.0, account.request_s)),
                reason=RefusalReason.TENANT_REQUESTS,
            )
        limit = tenant.max_tokens_per_minute
        if limit is None:
            return
        if num_tokens > limit:
            message = f"prompt and max_tokens are {num_tokens} tokens; {limit} a minute are allowed"
            raise InvalidRequestError(message, param="max_tokens")
        account.drain(self._clock(), limit)
        num_missing = account.num_used + num_tokens - limit
        # Rounding must not refuse a client that waited exactly `retry_after_s`.
        if num_missing > 1e-6 * limit:
            raise OverloadedError(
                f"{num_tokens} tokens are asked for, and "
                f"{max(0, math.floor(limit - account.num_used))} are left of {limit} a minute",
                retry_after_s=num_missing / limit * MINUTE_S,
                reason=RefusalReason.TENANT_TOKENS,
            )
        account.num_used += num_tokens

    def _account(self, tenant: Tenant) -> _Account:
        account = self._accounts.get(tenant.name)
        if account is None:
            if len(self._accounts) >= _MANY_ACCOUNTS:
                self._forget()
            account = self._accounts[tenant.name] = _Account(at_s=self._clock())
        return account

    def _forget(self) -> None:
        """Drop idle accounts: a minute after its last request a tenant has a full bucket."""
        oldest_s = self._clock() - MINUTE_S
        for name, account in list(self._accounts.items()):
            if not account.num_running and account.at_s < oldest_s:
                del self._accounts[name]


def _headers(what: str, limit: int, remaining: int, reset_s: float) -> list[tuple[str, str]]:
    return [
        (f"x-ratelimit-limit-{what}", str(limit)),
        (f"x-ratelimit-remaining-{what}", str(max(0, remaining))),
        (f"x-ratelimit-reset-{what}", duration(reset_s)),
    ]


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it (0s, 20ms, 1s, 6m0s), rounded up."""
    ms = math.ceil(seconds * 1000)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, whole_s = divmod(math.ceil(ms / 1000), 60)
    return f"{minutes}m{whole_s}s" if minutes else f"{whole_s}s"
