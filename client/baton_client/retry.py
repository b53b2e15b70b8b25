"""Retries before the caller has got any part of the answer."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from baton_client import checks
from baton_client.errors import (
    BatonError,
    DeadlineError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
    from_rpc_error,
    invalid,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

#: After that many attempts every wait is the longest, and a float can still express it.
_MOST_DOUBLINGS = 64
#: gRPC's maximum is 27,000 hours, and it treats infinity as zero: longer times are no deadline.
_LONGEST_S = 27_000 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which failures to retry, and the wait before each retry.

    The wait doubles with each attempt, starting at `base_delay_s`, and is random within its upper
    half, so that clients refused together do not come back together. A server's own advice has
    precedence; advice over `max_delay_s` is left to the caller, so the error is raised.
    """

    max_attempts: int = 4
    base_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidRequestError for invalid ones."""
        if checks.integer("max_attempts", self.max_attempts) < 1:
            raise invalid("max_attempts", "it must be at least 1, which repeats nothing")
        if checks.number("base_delay_s", self.base_delay_s) < 0:
            raise invalid("base_delay_s", "it must not be negative")
        if checks.number_or_infinity("max_delay_s", self.max_delay_s) < 0:
            raise invalid("max_delay_s", "it must not be negative")

    def delay_s(self, error: BatonError, attempt: int, *, remaining_s: float) -> float | None:
        """Return the wait [s] after the failure of `attempt` (from 1); None: no further attempt."""
        if attempt >= self.max_attempts:
            return None
        if isinstance(error, RequestCancelledError) and error.was_aborted:
            return None
        # Cancelled calls of this client are not retried, so this is a server that shuts down: it
        # cancels running calls, and calls that it has not read yet.
        if not isinstance(error, UnavailableError | OverloadedError | RequestCancelledError):
            return None
        advice_s = error.retry_after_s if isinstance(error, OverloadedError) else None
        if advice_s is not None:
            delay_s = advice_s * random.uniform(1.0, 1.25)
            too_long = advice_s > self.max_delay_s
        else:
            doubled = 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
            ceiling_s = min(self.max_delay_s, self.base_delay_s * doubled)
            delay_s = ceiling_s * random.uniform(0.5, 1.0)
            too_long = False
        return None if too_long or delay_s >= remaining_s else delay_s


def rpc_timeout_s(remaining_s: float) -> float | None:
    """Return the timeout for gRPC: None is no deadline."""
    return remaining_s if remaining_s < _LONGEST_S else None


async def attempts(
    call: Callable[[float], Awaitable[T]],
    *,
    policy: RetryPolicy,
    timeout_s: float,
    request_id: str = "",
) -> T:
    """Await `call(remaining seconds)`, with retries as far as `policy` and the time allow.

    Raises:
        BatonError: the last failure.
    """
    deadline_s = time.monotonic() + timeout_s
    failure: BatonError = DeadlineError(
        f"no time left for the request: {timeout_s:g} s", request_id=request_id
    )
    attempt = 0
    while (remaining_s := deadline_s - time.monotonic()) > 0:
        attempt += 1
        try:
            return await call(remaining_s)
        except grpc.aio.AioRpcError as rpc_error:
            failure = from_rpc_error(rpc_error, request_id=request_id)
        delay_s = policy.delay_s(failure, attempt, remaining_s=deadline_s - time.monotonic())
        if delay_s is None:
            break
        await asyncio.sleep(delay_s)
    raise failure
