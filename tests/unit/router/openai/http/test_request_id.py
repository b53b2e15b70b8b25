"""x-request-id: taken over when sane, replaced when not, and never twice in the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

URL = "/v1/completions"


async def post(http: httpx.AsyncClient, request_id: str | bytes) -> httpx.Response:
    headers = [
        (b"x-request-id", request_id.encode() if isinstance(request_id, str) else request_id)
    ]
    response = await http.post(URL, json={"prompt": "a"}, headers=headers)
    assert response.status_code == 200
    return response


async def test_a_sane_id_is_taken_over(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    response = await post(http, "Root=1-67891233-abc;x")
    assert response.headers["x-request-id"] == "Root=1-67891233-abc;x"
    assert response.json()["id"] == "cmpl-Root=1-67891233-abc;x"
    assert api.generator.requests[0].request_id.startswith("cmpl-Root=1-67891233-abc;x-")


@pytest.mark.parametrize("bad", ["", "x" * 129, "a b", 'a"b', "a\tb", b"\xff", "a{b}"])
async def test_an_odd_id_is_replaced(http: httpx.AsyncClient, bad: str | bytes) -> None:
    given = (await post(http, bad)).headers["x-request-id"]
    assert len(given) == 32
    assert given.isalnum()


async def test_an_id_used_twice_is_unique_in_the_pipeline(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    await post(http, "again")
    await post(http, "again")
    first, second = (request.request_id for request in api.generator.requests)
    assert first != second


async def test_errors_carry_the_id_too(http: httpx.AsyncClient) -> None:
    for url in (URL, "/nowhere"):
        response = await http.post(url, json={}, headers={"x-request-id": "mine"})
        assert response.status_code in (400, 404)
        assert response.headers["x-request-id"] == "mine"
