"""Liveness, readiness, version, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

    from tests.fakes.openai_api import OpenAIApi


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


async def test_metrics_come_in_the_format_asked_for(http: httpx.AsyncClient) -> None:
    plain = await http.get("/metrics")
    assert "baton_tests_total 0.0" in plain.text
    assert plain.headers["content-type"].startswith("text/plain")
    openmetrics = await http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert openmetrics.text.endswith("# EOF\n")


async def test_the_document_describes_the_bodies(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert document == (await http.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/ChatBody"
    assert "min_tokens" in document["components"]["schemas"]["ChatBody"]["properties"]
    assert "ChatMessage" in document["components"]["schemas"]
