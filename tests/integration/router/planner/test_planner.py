"""The planner in a router: what it counts, and the orders that its moves become."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from cli.plan.live import live_of
from services.router.front import Front
from services.router.operated import OperatedCluster
from services.router.parts import open_parts
from services.router.planning.base import Counts
from services.router.settings.planner import PlannerSettings
from services.router.usage import Usage
from services.router.watch.metrics import observe_state
from shared.errors import ConfigError
from shared.identity import Role
from tests.fakes.scripted.decode import say
from tests.integration.router.planner.test_roles import BOTH, report

if TYPE_CHECKING:
    from services.router.config import RouterConfig
    from services.router.planner.loop import PlannerLoop
    from services.router.planner.shown import ShownDecision
    from tests.fakes.directory.redis_server import RedisServer
    from tests.integration.router.conftest import Bench

#: Nothing looks but the test.
ACT = PlannerSettings(planner="act", planner_interval_s=1000.0, planner_ttft_ms=500.0)


def planner_of(bench: Bench) -> PlannerLoop:
    planner = bench.parts.pool.parts.planner
    assert planner is not None
    return planner


@pytest.mark.parametrize("bench", [{"planning": ACT}], indirect=True)
async def test_requests_count_as_they_come_and_a_move_is_an_order(bench: Bench) -> None:
    await bench.add_worker(name="p", role=Role.PREFILL, serves=BOTH)
    decoders = [await bench.add_worker(say(70, 71), name=f"d{i}", serves=BOTH) for i in range(3)]
    for each in bench.parts.endpoints.everyone():
        each.record = replace(each.record, num_blocks=100_000, max_num_seqs=48)
    planner = planner_of(bench)
    registry = CollectorRegistry()
    observe_state(bench.parts.router, registry)
    backend = Front(bench.config, bench.parts.router, registry).backend(
        bench.parts.pool, bench.parts.served
    )
    async for piece in backend.generator.generate(bench.request()):
        assert piece.index == 0
    # Answers of one token to long prompts; then a burst comes, of which nothing is answered yet.
    usage = Usage(prompt_tokens=4000, completion_tokens=1)
    for _ in range(2000):
        planner.view.answered(usage)
    for _ in range(60):
        planner.view.arrived(4000)
    # A rate is that since the last report: within 30 ms it is one that two workers cannot decode.
    await asyncio.sleep(0.2)
    looking = asyncio.create_task(planner.look())
    orders = [asyncio.create_task(each.wait_orders(1)) for each in decoders]
    done, waiting = await asyncio.wait(orders, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
    assert len(done) == 1
    moved = next(each for each in decoders if each.orders)
    assert moved.orders[0].role == 1
    await report(bench, moved)
    await looking
    last = planner.decisions[-1]
    assert (last.moved, last.moved_to) == (str(moved.record.worker), "prefill")
    assert last.output_tokens == 1
    # 60 long ones, and the one that was answered.
    assert last.prompt_tokens == pytest.approx(60 * 4000 / 61, rel=0.01)
    assert registry.get_sample_value("baton_planner_desired_workers", {
        "model_name": "tiny", "role": "decode",
    }) == last.desired_decode  # fmt: skip
    assert {e.name for e in bench.parts.endpoints.of_role(Role.PREFILL)} == {"p", moved.name}
    # Two decode workers are left. Autoscalers see roles that workers start with.
    labels = {"model_name": "tiny", "role": "prefill"}
    assert registry.get_sample_value("baton_planner_workers", labels) == 1
    assert registry.get_sample_value("baton_planner_moves_total", {"model_name": "tiny"}) == 1
    check_what_operators_see(bench, last)


def check_what_operators_see(bench: Bench, last: ShownDecision) -> None:
    described = OperatedCluster(bench.config, bench.parts.router).describe()
    [pool] = described["pools"]
    assert pool["planner"]["decision"]["moved"] == last.moved
    assert pool["planner"]["demand"]["requests_per_s"] == pytest.approx(
        last.requests_per_s, rel=0.01
    )
    # `baton plan` reads the same.
    live = live_of(described, "http://router", model="tiny")
    assert live.counts == Counts(2, 2)
    assert live.bounds.max_ttft_ms == 500.0
    assert live.speed.kv_tokens == 1_600_000
    assert live.speed.max_sequences == 48


async def test_without_a_planner_nothing_is_counted(bench: Bench) -> None:
    assert bench.parts.pool.parts.planner is None
    registry = CollectorRegistry()
    observe_state(bench.parts.router, registry)
    assert not [m for m in registry.collect() if m.name.startswith("baton_planner")]


async def test_of_two_routers_one_plans_for_both_and_the_other_follows_it(
    config: RouterConfig, redis_server: RedisServer
) -> None:
    config = replace(config, planning=ACT, redis_url=redis_server.url)
    async with open_parts(config, name="one") as one, open_parts(config, name="two") as two:
        first, second = one.pools[0].parts.planner, two.pools[0].parts.planner
        assert first is not None
        assert second is not None
        for _ in range(30):
            second.view.arrived(3)
        await second.look()
        assert (first.leads, second.leads) == (False, True)
        for _ in range(30):
            first.view.arrived(3)
        await first.look()
        await second.look()
        assert not first.leads
        # The leader has counted what came to the other one.
        assert second.decisions[-1].requests_per_s > 0
        await first.look()
        assert first.decisions[-1] == second.decisions[-1]
        assert first.leader == "two"
    async with open_parts(config, name="three") as three:
        # The leader ended in order: no router waits for its lease.
        third = three.pools[0].parts.planner
        assert third is not None
        await third.look()
        assert third.leads


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"planner_interval_s": 0.0}, "--planner-interval-s must be over 0"),
        ({"planner_itl_ms": 0.0}, "--planner-itl-ms must be over 0"),
        ({"planner_min_decode": -1}, "--planner-min-decode must not be negative"),
        ({"planner_min_decode": 8}, "--planner-max-workers is 8"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PlannerSettings(**settings)  # type: ignore[arg-type]
