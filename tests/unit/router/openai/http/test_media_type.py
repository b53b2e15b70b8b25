"""Which bodies are read: plain JSON that says so, on every endpoint that takes a body."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.clients.error_words import code_of

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

HELLO = [{"role": "user", "content": "Hi"}]
TOKENS = {"choices": [{"index": 0, "token_ids": [5]}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": HELLO},
    "/v1/responses/input_tokens": {"input": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/invocations": {"prompt": "a"},
    "/v1/chat/completions/batch": {"messages": [HELLO]},
    "/v1/chat/completions/render": {"messages": HELLO},
    "/v1/completions/render": {"prompt": "a"},
    "/v1/chat/completions/derender": {"generate_response": TOKENS},
    "/v1/completions/derender": {"generate_responses": [TOKENS]},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {}},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
every_endpoint = pytest.mark.parametrize("url", BODIES)


def test_the_table_has_every_endpoint_with_a_body(api: OpenAIApi) -> None:
    paths = api.app.openapi()["paths"]
    assert {path for path in paths if "requestBody" in paths[path].get("post", {})} == set(BODIES)


@every_endpoint
@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "Application/JSON ; charset=utf-8",
        "application/vnd.baton.v1+json",
    ],
)
async def test_json_is_read(http: httpx.AsyncClient, url: str, media_type: str) -> None:
    headers = {"content-type": media_type, "content-encoding": "identity"}
    response = await http.post(url, content=json.dumps(BODIES[url]), headers=headers)
    assert response.status_code == 200, response.text


@every_endpoint
@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json-seq",
        "application/jsonx",
        "text/json",
        "+json",
        "",
        None,
    ],
)
async def test_what_a_page_can_send_unasked_is_refused(
    api: OpenAIApi, http: httpx.AsyncClient, url: str, media_type: str | None
) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    response = await http.post(url, content=json.dumps(BODIES[url]), headers=headers)
    assert response.status_code == 415
    error = response.json()["error"]
    assert "content-type must be application/json" in error["message"]
    if not url.startswith("/v1/messages"):
        assert error["code"] == code_of(url, None, "unsupported_media_type", 415)
    assert not api.generator.requests


@every_endpoint
async def test_encoded_bodies_are_refused(http: httpx.AsyncClient, url: str) -> None:
    content = gzip.compress(json.dumps(BODIES[url]).encode())
    for coding in ("gzip", "deflate, gzip"):
        headers = {"content-type": "application/json", "content-encoding": coding}
        response = await http.post(url, content=content, headers=headers)
        assert response.status_code == 415
        assert "content-encoding" in response.json()["error"]["message"]
