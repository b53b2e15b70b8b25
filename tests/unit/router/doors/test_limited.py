from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.router.admission.tenant import Tenant
from services.router.admission.tenant_limits import TenantLimits
from services.router.admission.tenant_metrics import MAX_TENANTS, OTHERS, TenantMetrics
from services.router.doors.limited import LimitedGenerator
from services.router.request.generation import AnswerPiece, GenerationRequest
from shared.errors import BatonError, InvalidRequestError, OverloadedError, RefusalReason
from shared.generation.params import GenerationParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from services.router.request.outlet import Outlet

MINUTE = 1000
TENANT = Tenant(name="a", max_tokens_per_minute=MINUTE, max_concurrent_requests=1)


class Three:
    """Answers with three tokens, and fails before the one that it is told."""

    def __init__(self, fail_at: int | None = None, error: BatonError | None = None) -> None:
        self.num_asked = 0
        self._fail_at = fail_at
        self._error = error

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        self.num_asked += 1
        for i in range(3):
            if i == self._fail_at and self._error is not None:
                raise self._error
            yield AnswerPiece(index=0, token_ids=(i,))


class Front:
    def __init__(self, generator: Three) -> None:
        self.limits = TenantLimits()
        self.registry = CollectorRegistry()
        self.metrics = TenantMetrics(queued=dict, running=self.limits.running)
        self.registry.register(self.metrics)
        self.generator = LimitedGenerator(
            generator, self.limits, self.metrics, max_model_len=lambda: 4096
        )

    def open(self, max_tokens: int | None, tenant: Tenant = TENANT) -> AsyncGenerator[AnswerPiece]:
        request = GenerationRequest(
            request_id="r",
            model="m",
            prompt_token_ids=(1,) * 100,
            params=GenerationParams(max_tokens=max_tokens),
            tenant=tenant,
        )
        return cast("AsyncGenerator[AnswerPiece]", self.generator.generate(request))

    async def ask(self, max_tokens: int | None, tenant: Tenant = TENANT) -> int:
        async with aclosing(self.open(max_tokens, tenant)) as pieces:
            return sum([len(piece.token_ids) async for piece in pieces])

    @property
    def left(self) -> int:
        return int(dict(self.limits.headers(TENANT))["x-ratelimit-remaining-tokens"])

    def exposed(self) -> str:
        return generate_latest(self.registry).decode()


async def test_a_request_pays_for_its_prompt_and_what_was_sent() -> None:
    front = Front(Three())
    assert await front.ask(500) == 3
    # The bucket fills while this runs, by 17 tokens a second.
    assert MINUTE - 103 <= front.left < MINUTE - 50
    exposed = front.exposed()
    assert 'baton_tenant_prompt_tokens_total{tenant="a"} 100.0' in exposed
    assert 'baton_tenant_generation_tokens_total{tenant="a"} 3.0' in exposed


async def test_what_is_set_aside_is_the_most_that_it_can_use() -> None:
    front = Front(Three())
    first = front.open(500, Tenant(name="a", max_tokens_per_minute=MINUTE))
    await anext(first)
    assert front.left <= MINUTE - 600 + 20
    with pytest.raises(OverloadedError) as caught:
        await front.ask(500, Tenant(name="a", max_tokens_per_minute=MINUTE))
    assert caught.value.reason is RefusalReason.TENANT_TOKENS
    await first.aclose()
    # It was given up: what was sent counts, the rest came back.
    assert front.left >= MINUTE - 101
    assert front.limits.running() == {}


async def test_without_max_tokens_no_more_is_set_aside_than_a_minute_has() -> None:
    front = Front(Three())
    assert await front.ask(None) == 3


async def test_who_is_over_a_limit_does_not_reach_the_pipeline() -> None:
    three = Three()
    front = Front(three)
    first = front.open(1)
    await anext(first)
    with pytest.raises(OverloadedError):
        await front.ask(1)
    with pytest.raises(InvalidRequestError):
        await front.ask(MINUTE, Tenant(name="a", max_tokens_per_minute=MINUTE))
    assert three.num_asked == 1
    await first.aclose()
    exposed = front.exposed()
    assert 'baton_requests_refused_total{reason="tenant_requests",tenant="a"} 1.0' in exposed


@pytest.mark.parametrize(("fail_at", "least"), [(0, MINUTE), (1, MINUTE - 101)])
async def test_what_was_refused_later_costs_nothing_and_what_had_begun_does(
    fail_at: int, least: int
) -> None:
    front = Front(Three(fail_at, OverloadedError("full", reason=RefusalReason.QUEUE_FULL)))
    with pytest.raises(OverloadedError):
        await front.ask(100)
    assert least <= front.left
    assert front.left < MINUTE or not fail_at
    assert 'reason="queue_full",tenant="a"} 1.0' in front.exposed()


async def test_labels_of_tenants_are_bounded() -> None:
    front = Front(Three())
    for i in range(3 * MAX_TENANTS):
        await front.ask(1, Tenant(name=f"t{i}"))
    lines = [x for x in front.exposed().splitlines() if x.startswith("baton_tenant_requests_total")]
    assert len(lines) == MAX_TENANTS + 1
    assert f'{{tenant="{OTHERS}"}} {2 * MAX_TENANTS}.0' in "\n".join(lines)
