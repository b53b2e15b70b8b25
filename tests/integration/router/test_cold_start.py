"""Requests that come while there is no worker wait for the first one, if the router is told so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from baton.v1 import router_pb2
from services.router.settings.planner import PlannerSettings
from tests.fakes.router.catalogue_site import catalogue_site

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.router.catalogue_site import CatalogueSite


async def waiting(site: CatalogueSite, model: str, count: int) -> None:
    async with asyncio.timeout(10):
        while site.pool(model).num_waiting != count:  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(0.01)


async def test_a_request_is_held_until_a_worker_comes(tmp_path: Path) -> None:
    async with catalogue_site(
        tmp_path, worker_wait_s=20.0, planning=PlannerSettings(planner="advise")
    ) as site:
        ready = await site.http.get("/health")
        assert ready.status_code == 200
        over_http = asyncio.create_task(site.ask("beta"))
        over_grpc = site.grpc.Generate(
            router_pb2.GenerateRequest(model="beta", prompt=router_pb2.Prompt(text="hello"))
        )
        reading = asyncio.create_task(over_grpc.read())
        await waiting(site, "beta", 2)
        # It counts for autoscalers and for the planner, though nothing has been checked yet.
        labels = {"model_name": "beta"}
        assert site.registry.get_sample_value("baton_num_requests_waiting", labels) == 2
        planner = site.pool("beta").parts.planner
        assert planner is not None
        assert planner.view.report().num_waiting == 2
        # A worker of another model is no help.
        await site.join("alpha-0", "alpha")
        assert not over_http.done()
        await site.join("beta-0", "beta")
        assert (await over_http).status_code == 200
        assert await reading is not grpc.aio.EOF
        over_grpc.cancel()
        await waiting(site, "beta", 0)
        # And again, when the last one has left.
        await site.leave("beta-0")
        await site.until("beta", lambda: not site.pool("beta").is_ready)
        again = asyncio.create_task(site.ask("beta"))
        await waiting(site, "beta", 1)
        await site.join("beta-1", "beta")
        assert (await again).status_code == 200


async def test_the_wait_ends_and_the_room_is_limited(tmp_path: Path) -> None:
    settings = {"worker_wait_s": 0.3, "max_queued_requests": 1}
    async with catalogue_site(tmp_path, **settings) as site:
        held = asyncio.create_task(site.ask("alpha"))
        await waiting(site, "alpha", 1)
        refused = await site.ask("alpha")
        assert refused.status_code == 429
        assert "wait for the first worker" in refused.json()["error"]["message"]
        late = await held
        assert late.status_code == 503
        assert "no worker has become ready within 0.3 s" in late.json()["error"]["message"]
        gone = asyncio.create_task(site.ask("alpha"))
        await waiting(site, "alpha", 1)
        gone.cancel()
        await waiting(site, "alpha", 0)


async def test_by_default_nothing_is_held(tmp_path: Path) -> None:
    async with catalogue_site(tmp_path) as site:
        assert (await site.ask("alpha")).status_code == 503
        assert (await site.http.get("/health")).status_code == 503
