"""The page's routes over the real application, and what the router keeps for it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from services.router.dashboard.assets import read_assets
from services.router.dashboard.routes import Dashboard
from services.router.dashboard.state import DashboardState
from services.router.doors.app import create_app
from services.router.doors.http_server import HttpServer
from services.router.openai.auth import DASHBOARD_EVENTS_PATH, DASHBOARD_REQUEST_PATH, OPEN_PATHS
from services.router.openai.catalogue import one_model
from services.router.watch.metrics import RequestMeters
from services.router.watch.watched import WatchedGenerator
from shared.errors import NoWorkerError
from shared.identity import Role
from tests.fakes.scripted.decode import Script, Step, say
from tests.fakes.security.keys import KeysOnDisk, keys_on_disk

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI

    from services.router.doors.auth import Authenticator
    from tests.integration.router.conftest import Bench

SECRET = "a prompt that nobody else may read"
DATA = (DASHBOARD_EVENTS_PATH, DASHBOARD_REQUEST_PATH)


class Site:
    """The application with a page, over a bench."""

    def __init__(self, bench: Bench, keys: Authenticator | None = None) -> None:
        self.bench = bench
        self.state = DashboardState(bench.parts.router, name="router-0", version="1.2.3")
        self.dashboard = Dashboard(self.state)
        meter = RequestMeters(CollectorRegistry(), self.state.tokens).of("tiny")
        self.generator = WatchedGenerator(bench.parts.pipeline, [meter, self.state])
        self.app = self._app(keys)

    def _app(self, keys: Authenticator | None) -> FastAPI:
        return create_app(
            one_model(self.bench.backend(self.generator)),
            not_ready_because=self.bench.parts.endpoints.not_ready_because,
            registry=CollectorRegistry(),
            version="1.2.3",
            keys=keys,
            open_metrics=True,
            dashboard=self.dashboard,
        )

    async def get(self, path: str, key: str | None = None, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            return await client.get(path, headers=headers)

    async def ask(self, **body: Any) -> None:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def disk(tmp_path: Path) -> KeysOnDisk:
    return keys_on_disk(tmp_path)


async def test_the_page_is_one_of_the_router_s_own_files_alone(bench: Bench) -> None:
    site = Site(bench)
    page = await site.get("/dashboard")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for mark in ("<style", "style=", " onclick", "http://", "https://", "//cdn"):
        assert mark not in page.text
    assert page.text.count("<script") == page.text.count("<script src=")
    served = {asset.path for asset in read_assets()}
    named = [part.split('"')[0] for part in page.text.replace('href="', 'src="').split('src="')[1:]]
    local = {f"/{name}" for name in named if name not in ("#main", "metrics")}
    assert local
    assert local <= served
    for path in local:
        assert (await site.get(path)).status_code == 200


async def test_a_file_is_sent_again_only_after_it_has_changed(bench: Bench) -> None:
    site = Site(bench)
    first = await site.get("/dashboard/js/main.js")
    assert (first.headers["content-type"], first.headers["cache-control"]) == (
        "text/javascript; charset=utf-8",
        "no-cache",
    )
    again = await site.get("/dashboard/js/main.js", **{"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    old = await site.get("/dashboard/js/main.js", **{"if-none-match": '"old"'})
    assert old.status_code == 200


async def test_what_is_vendored_has_its_license_beside_it(bench: Bench) -> None:
    names = {asset.path.rsplit("/", 1)[1] for asset in read_assets() if "/vendor/" in asset.path}
    libraries = {"uplot", "htm", "preact"}
    assert {f"{library}-LICENSE.txt" for library in libraries} <= names
    assert {name for name in names if name.endswith(".js")} == {"uplot.js", "htm-preact.js"}


async def test_a_slash_at_the_end_leads_to_the_page(bench: Bench) -> None:
    site = Site(bench)
    answer = await site.get("/dashboard/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../dashboard")
    for path in ("/dashboard/none.js", "/dashboard/js/", "/dashboard/..%2froutes.py"):
        assert (await site.get(path)).status_code == 404


async def test_files_are_open_and_data_is_for_operators(bench: Bench, disk: KeysOnDisk) -> None:
    site = Site(bench, KeyRing(FileKeys(disk.path)))
    # `--open-metrics` opens the metrics and nothing of the page.
    is_open = OPEN_PATHS | site.dashboard.open_paths | {"/metrics"}
    for route in site.app.routes:
        assert isinstance(route, Route)
        if "GET" in (route.methods or ()) and route.path not in is_open:
            path = route.path.replace("{model:path}", "tiny")
            assert (await site.get(path)).status_code == 401, path
    for path in site.dashboard.open_paths:
        assert (await site.get(path)).status_code in (200, 308), path
        assert not path.startswith(DATA)
    for path in DATA:
        for key in (None, "bt-none-none"):
            assert (await site.get(path, key)).status_code == 401
        assert (await site.get(path, disk.keys["a"])).status_code == 403
    found = await site.get(f"{DASHBOARD_REQUEST_PATH}?number=1", disk.keys["ops"])
    assert found.status_code == 404


async def test_it_is_no_part_of_the_documented_api(bench: Bench) -> None:
    document = (await Site(bench).get("/openapi.json")).json()
    assert not [path for path in document["paths"] if path.startswith("/dashboard")]


async def test_a_request_leaves_its_cost_and_its_reason_and_nothing_of_its_text(
    bench: Bench,
) -> None:
    site = Site(bench)
    await bench.add_worker(say(70, 71, 72), name="decode-0")
    await bench.add_worker(say(70, 71, 72), name="decode-1")
    await bench.add_worker(name="prefill-0", role=Role.PREFILL)
    await site.ask(prompt=SECRET, max_tokens=3)
    site.state.look()
    hello = site.state.hello()
    [row] = hello.tick.requests
    assert (row.outcome, row.failed, row.completion_tokens) == ("length", False, 3)
    assert row.prompt_tokens == len(bench.parts.tokenizer.encode(SECRET))
    assert row.decode in ("decode-0", "decode-1")
    assert row.ttft_ms is not None
    assert 0 < row.ttft_ms <= row.total_ms
    assert hello.tick.points[-1].ttft_p50_ms is not None
    assert {worker.name: worker.state.value for worker in hello.tick.workers} == {
        "prefill-0": "ready",
        "decode-0": "ready",
        "decode-1": "ready",
    }
    answer = await site.get(f"{DASHBOARD_REQUEST_PATH}?number={row.number}")
    assert answer.headers["cache-control"] == "no-store"
    detail = answer.json()
    reason = detail["why"]
    assert (reason["policy"], reason["num_decisions"]) == ("cost", 1)
    assert [each["worker"] for each in reason["prefill"]["candidates"]] == ["prefill-0"]
    first, second = reason["decode"]["candidates"]
    assert first["worker"] == row.decode
    assert {first["worker"], second["worker"]} == {"decode-0", "decode-1"}
    assert first["cost_ms"] <= second["cost_ms"]
    for each in (first, second):
        assert each["cost_ms"] == pytest.approx(sum(each["terms_ms"].values()), abs=0.01)
    feed = site.dashboard.feed.events()
    async with aclosing(feed) as events:
        shown = (await anext(events)).decode() + json.dumps(detail)
    assert SECRET not in shown
    assert SECRET[:12] not in shown


async def test_what_failed_is_told_with_why_nobody_took_it(bench: Bench) -> None:
    site = Site(bench)
    await bench.add_worker(name="decode-0")
    [endpoint] = bench.parts.endpoints.of_role(Role.DECODE)
    endpoint.refused = True
    pieces = site.generator.generate(bench.request())
    with pytest.raises(NoWorkerError):
        await anext(pieces)
    [row] = site.state.hello().tick.requests
    assert (row.outcome, row.failed, row.decode, row.ttft_ms) == ("NoWorkerError", True, "", None)
    detail = (await site.get(f"{DASHBOARD_REQUEST_PATH}?number=1")).json()
    assert detail["why"]["decode"]["candidates"] == []
    assert detail["why"]["decode"]["left_out"] == {"decode-0": "draining"}
    assert detail["timings"] is None


async def test_who_gives_up_is_no_failure(bench: Bench) -> None:
    site = Site(bench)
    gate = asyncio.Event()
    await bench.add_worker(Script([Step(token_ids=(70,)), Step(token_ids=(71,), gate=gate)]))
    async with aclosing(site.generator.generate(bench.request())) as pieces:
        await anext(pieces)
    [row] = site.state.hello().tick.requests
    assert (row.outcome, row.failed, row.decode) == ("cancelled", False, "decode-0")


async def test_a_number_that_is_none_is_refused(bench: Bench) -> None:
    site = Site(bench)
    for query in ("", "?number=x", "?number="):
        assert (await site.get(f"{DASHBOARD_REQUEST_PATH}{query}")).status_code == 400
    for number in (0, -1, 1, 2**70):
        answer = await site.get(f"{DASHBOARD_REQUEST_PATH}?number={number}")
        assert answer.status_code == 404


async def test_an_open_page_sees_ticks_and_does_not_hold_up_the_router_s_end(bench: Bench) -> None:
    site = Site(bench)
    feed = site.dashboard.feed
    server = HttpServer(site.app, drain_grace_s=3600)
    await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        async with client.stream("GET", DASHBOARD_EVENTS_PATH) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.aiter_lines()
            assert await anext(lines) == "event: hello"
            about = json.loads((await anext(lines)).removeprefix("data: "))["about"]
            assert (about["name"], about["models"]) == ("router-0", ["tiny"])
            await anext(lines)
            feed.look()
            assert await anext(lines) == "event: tick"
            async with asyncio.timeout(20):
                await feed.stop()
                assert [line async for line in lines][-1] == ""
        refused = await client.get(DASHBOARD_EVENTS_PATH)
        assert refused.status_code == 503
    async with asyncio.timeout(20):
        await server.stop()


async def test_a_viewer_that_goes_away_is_noticed(bench: Bench) -> None:
    site = Site(bench)
    feed = site.dashboard.feed
    server = HttpServer(site.app, drain_grace_s=1)
    await server.start("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        async with client.stream("GET", DASHBOARD_EVENTS_PATH) as response:
            await anext(response.aiter_lines())
            assert feed.num_viewers == 1
        async with asyncio.timeout(10):
            while feed.num_viewers:  # noqa: ASYNC110 it ends on another connection
                await asyncio.sleep(0.01)
    await server.stop()
