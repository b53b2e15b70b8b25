"""Liveness, readiness, version, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Gauge

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi


async def test_alive_is_not_ready(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    probes = (("GET", "/ready"), ("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"))
    for method, url in probes:
        response = await http.request(method, url)
        body = {"status": "ready", "reasons": [], "notes": []}
        assert (response.status_code, response.json()) == (200, body), url
    api.not_ready_because.append("no decode worker")
    for method, url in probes:
        response = await http.request(method, url)
        body = {"status": "not_ready", "reasons": ["no decode worker"], "notes": []}
        assert (response.status_code, response.json()) == (503, body), url
        assert response.headers["retry-after"] == "1"
    response = await http.get("/live")
    assert (response.status_code, response.json()) == (200, {"status": "alive"})


async def test_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": "1.2.3"}


async def test_metrics_keep_their_names_in_every_format(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    Gauge("vllm:tests", "A name as vLLM's are", registry=api.registry)
    for accepted in ("*/*", "application/openmetrics-text;version=1.0.0,text/plain"):
        metrics = await http.get("/metrics", headers={"accept": accepted})
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "\nbaton_tests_total 0.0\n" in metrics.text
        assert "\nvllm:tests 0.0\n" in metrics.text


async def test_the_document_describes_the_bodies(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document == (await http.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/ChatBody"
    assert "min_tokens" in document["components"]["schemas"]["ChatBody"]["properties"]
    assert "ChatMessage" in document["components"]["schemas"]
