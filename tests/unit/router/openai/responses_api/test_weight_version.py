"""Every API names the version of the weights that an answer comes from, at the answer's end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from anthropic.types import Message as OfficialMessage
from openai.types.responses import Response as OfficialResponse

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.keeper import ResponseKeeper
from services.router.openai.responses_api.stored.memory import MemoryStore
from tests.fakes.clients.official_events import message_events, response_events
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

HELLO = [{"role": "user", "content": "Hi"}]
GENERATE = {"token_ids": [5, 6, 7], "sampling_params": {}}
LIMITS = StoreLimits(max_entries=100, max_bytes=1 << 20, max_age_s=60)


@pytest.fixture
def api() -> OpenAIApi:
    api = OpenAIApi(responses=ResponseKeeper(MemoryStore(LIMITS)))
    api.speaker.weight_version = "step-1"
    return api


def chunks(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("url", "body", "place"),
    [
        ("/v1/responses", {"input": "Hi"}, lambda reply: reply),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}, lambda reply: reply),
        ("/v1/chat/completions", {"messages": HELLO}, lambda reply: reply["choices"][0]),
        ("/v1/completions", {"prompt": "Hi"}, lambda reply: reply["choices"][0]),
        ("/inference/v1/generate", GENERATE, lambda reply: reply["choices"][0]),
    ],
)
async def test_a_whole_answer_names_its_version(
    api: OpenAIApi, http: httpx.AsyncClient, url: str, body: Any, place: Callable[[Any], Any]
) -> None:
    assert place((await http.post(url, json=body)).json())["weight_version"] == "step-1"
    api.speaker.weight_version = ""
    assert "weight_version" not in place((await http.post(url, json=body)).json())


async def test_a_stream_names_its_version_at_its_end(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/responses", json={"input": "Hi", "stream": True})
    *before, last = response_events(reply.text)
    assert last["response"]["weight_version"] == "step-1"
    assert "weight_version" not in json.dumps(before)
    OfficialResponse.model_validate(last["response"])
    body = {"messages": HELLO, "max_tokens": 9}
    reply = await http.post("/v1/messages", json={**body, "stream": True})
    *before, delta, _ = message_events(reply.text)
    assert delta["delta"]["weight_version"] == "step-1"
    assert "weight_version" not in json.dumps(before)
    OfficialMessage.model_validate((await http.post("/v1/messages", json=body)).json())
    reply = await http.post("/inference/v1/generate", json={**GENERATE, "stream": True})
    *before, last = chunks(reply.text)
    assert last["choices"][0]["weight_version"] == "step-1"
    assert all("weight_version" not in each["choices"][0] for each in before)
    assert last["choices"][0]["weight_versions"][0]["version"] == "step-1"


async def test_a_response_that_goes_on_has_its_own_version(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    first = (await http.post("/v1/responses", json={"input": "Hi"})).json()
    api.speaker.weight_version = "step-2"
    body = {"input": "More", "previous_response_id": first["id"]}
    second = (await http.post("/v1/responses", json=body)).json()
    assert (first["weight_version"], second["weight_version"]) == ("step-1", "step-2")
    for reply in (first, second):
        assert (await http.get(f"/v1/responses/{reply['id']}")).json() == reply
