from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.admission.tenant_limits import TenantLimits, duration
from shared.errors import InvalidRequestError, OverloadedError, RefusalReason


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def refusal(
    limits: TenantLimits, tenant: Tenant, num_tokens: int, num_used: int = 0
) -> OverloadedError | None:
    """Make a request that uses so much, if it may."""
    try:
        async with limits.enter(tenant, num_tokens) as permit:
            permit.num_tokens = num_used
    except OverloadedError as error:
        return error
    return None


async def test_without_limits_nothing_is_refused_and_nothing_is_said() -> None:
    limits = TenantLimits()
    async with limits.enter(ANONYMOUS, 10**9), limits.enter(ANONYMOUS, 10**9):
        assert limits.headers(ANONYMOUS) == []
        assert limits.running() == {"": 2}
    assert limits.running() == {}


async def test_requests_at_once_are_limited_by_tenant() -> None:
    limits = TenantLimits(clock=Clock())
    tenant = Tenant(name="a", max_concurrent_requests=2)
    async with limits.enter(tenant, 0):
        async with limits.enter(tenant, 0):
            error = await refusal(limits, tenant, 0)
            assert error is not None
            assert error.reason is RefusalReason.TENANT_REQUESTS
            assert error.retry_after_s >= 1
            async with limits.enter(Tenant(name="b", max_concurrent_requests=1), 0):
                pass
            assert dict(limits.headers(tenant))["x-ratelimit-remaining-requests"] == "0"
        async with limits.enter(tenant, 0):
            pass
    assert dict(limits.headers(tenant)) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "0s",
    }


async def test_tokens_not_used_are_given_back() -> None:
    limits = TenantLimits(clock=Clock())
    tenant = Tenant(name="a", max_tokens_per_minute=600)
    async with limits.enter(tenant, 600) as permit:
        assert dict(limits.headers(tenant))["x-ratelimit-remaining-tokens"] == "0"
        permit.num_tokens = 60
    assert dict(limits.headers(tenant)) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "540",
        "x-ratelimit-reset-tokens": "6s",
    }


async def test_what_can_never_be_served_is_not_called_overload() -> None:
    limits = TenantLimits()
    tenant = Tenant(name="a", max_tokens_per_minute=100)
    with pytest.raises(InvalidRequestError) as caught:
        async with limits.enter(tenant, 101):
            pass
    assert caught.value.param == "max_tokens"


@given(
    limit=st.integers(10, 10**6),
    steps=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 1), st.floats(0, 1)), max_size=40),
)
async def test_who_waits_as_long_as_told_gets_in_and_who_waits_less_does_not(
    limit: int, steps: list[tuple[float, float, float]]
) -> None:
    clock = Clock()
    limits = TenantLimits(clock=clock)
    tenant = Tenant(name="a", max_tokens_per_minute=limit)
    used: list[tuple[float, int]] = []
    for pause_s, share, used_share in steps:
        clock.now_s += pause_s
        wanted = max(1, int(share * limit))
        error = await refusal(limits, tenant, wanted, int(wanted * used_share))
        if error is not None:
            assert error.reason is RefusalReason.TENANT_TOKENS
            start_s = clock.now_s
            clock.now_s = start_s + error.retry_after_s * 0.99 - 0.001
            if clock.now_s > start_s and error.retry_after_s * limit / 60 > 1:
                assert await refusal(limits, tenant, wanted) is not None
            clock.now_s = start_s + error.retry_after_s
            assert await refusal(limits, tenant, wanted, int(wanted * used_share)) is None
        used.append((clock.now_s, int(wanted * used_share)))
    # A bucket that is full at first lets no more than two minutes' worth into any minute.
    for at_s, _ in used:
        within = sum(num for t_s, num in used if at_s - 60 < t_s <= at_s)
        assert within <= 2 * limit + 1


async def test_accounts_of_tenants_that_have_gone_are_dropped() -> None:
    clock = Clock()
    limits = TenantLimits(clock=clock)
    for i in range(5000):
        clock.now_s += 1
        async with limits.enter(Tenant(name=str(i), max_tokens_per_minute=10), 10) as permit:
            permit.num_tokens = 10
    assert len(limits._accounts) <= 1024


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0001, "1ms"), (0.02, "20ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
