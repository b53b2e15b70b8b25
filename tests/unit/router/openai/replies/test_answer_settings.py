"""Settings of what answers say where a request does not ask, and of the API's documents."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from services.router.settings.answers import AnswerSettings
from tests.fakes.router.openai_api import OpenAIApi

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
BODIES = {
    "/v1/chat/completions": {**CHAT, "logprobs": True},
    "/v1/chat/completions/batch": {**CHAT, "messages": [CHAT["messages"]], "logprobs": True},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3, "logprobs": 0},
}
STREAMED = ("/v1/chat/completions", "/v1/completions")


async def post(api: OpenAIApi, url: str, **fields: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.post(url, json={**BODIES[url], **fields})
    assert response.status_code == 200, response.text
    return response


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [json.loads(line) for line in lines[:-1]]


def first_token(answer: dict[str, Any]) -> str:
    logprobs = answer["choices"][0]["logprobs"]
    tokens = logprobs.get("tokens") or [each["token"] for each in logprobs["content"]]
    return str(tokens[0])


@pytest.mark.parametrize("url", STREAMED)
async def test_usage_is_forced_into_every_piece(url: str) -> None:
    api = OpenAIApi(answer_settings=AnswerSettings(enable_force_include_usage=True))
    # What a request says of it does not count.
    for options in ({}, {"stream_options": {"include_usage": False}}):
        pieces = events(await post(api, url, stream=True, **options))
        assert all(piece["usage"]["prompt_tokens"] for piece in pieces)
        assert pieces[-1]["choices"] == []
    unasked = events(await post(OpenAIApi(), url, stream=True))
    assert not any(piece.get("usage") for piece in unasked)


@pytest.mark.parametrize("url", BODIES)
async def test_tokens_are_named_by_their_ids_unless_a_request_refuses(url: str) -> None:
    api = OpenAIApi(answer_settings=AnswerSettings(return_tokens_as_token_ids=True))
    assert first_token((await post(api, url)).json()).startswith("token_id:")
    own = await post(api, url, return_tokens_as_token_ids=False)
    assert not first_token(own.json()).startswith("token_id:")


async def test_new_messages_have_the_role_that_is_set() -> None:
    api = OpenAIApi(answer_settings=AnswerSettings(response_role="bot"))
    url = "/v1/chat/completions"
    whole = (await post(api, url)).json()
    assert whole["choices"][0]["message"]["role"] == "bot"
    first = events(await post(api, url, stream=True))[0]
    assert first["choices"][0]["delta"]["role"] == "bot"
    # A message that is continued keeps its author.
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Hel"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    continued = (await post(api, url, **fields)).json()
    assert continued["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("has_docs", [True, False])
async def test_the_apis_documents_can_be_left_out(*, has_docs: bool) -> None:
    app = OpenAIApi(has_docs=has_docs).app
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert ((await http.get(path)).status_code == 200) is has_docs
        assert (await http.get("/health")).status_code == 200
