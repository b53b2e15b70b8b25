"""Which failures are repeated, after how long."""

from __future__ import annotations

import pytest

from baton_client import errors
from baton_client.retry import RetryPolicy

POLICY = RetryPolicy(max_attempts=3, base_delay_s=1.0, max_delay_s=4.0)
FOREVER = 1e9


def overloaded(retry_after_s: float | None) -> errors.OverloadedError:
    error = errors.OverloadedError("full")
    error.retry_after_s = retry_after_s
    return error


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_wait_doubles_and_is_spread_over_its_upper_half(attempt: int) -> None:
    error = errors.UnavailableError("gone")
    delays = [POLICY.delay_s(error, attempt, remaining_s=FOREVER) for _ in range(200)]
    known = [delay for delay in delays if delay is not None]
    assert len(known) == 200
    assert 2 ** (attempt - 1) / 2 <= min(known) < max(known) <= 2 ** (attempt - 1)
    assert len(set(known)) > 100


def test_attempts_are_bounded() -> None:
    assert POLICY.delay_s(errors.UnavailableError("gone"), 3, remaining_s=FOREVER) is None


def test_the_servers_advice_is_followed() -> None:
    delay = POLICY.delay_s(overloaded(3.0), 1, remaining_s=FOREVER)
    assert delay is not None
    assert 3.0 <= delay <= 3.75


def test_advice_beyond_the_longest_wait_is_the_callers_to_follow() -> None:
    assert POLICY.delay_s(overloaded(60.0), 1, remaining_s=FOREVER) is None


def test_nothing_is_repeated_that_could_not_end_in_time() -> None:
    assert POLICY.delay_s(overloaded(2.0), 1, remaining_s=1.0) is None


@pytest.mark.parametrize(
    "cls",
    [
        errors.InvalidRequestError,
        errors.PayloadTooLargeError,
        errors.AuthenticationError,
        errors.ModelNotFoundError,
        errors.DeadlineError,
        errors.InternalError,
    ],
)
def test_other_failures_are_not_repeated(cls: type[errors.BatonError]) -> None:
    assert POLICY.delay_s(cls("no"), 1, remaining_s=FOREVER) is None


def test_a_server_that_shuts_down_cancels_and_the_next_one_is_asked() -> None:
    cancelled = errors.RequestCancelledError("by the server")
    assert POLICY.delay_s(cancelled, 1, remaining_s=FOREVER) is not None
