"""Fields that nothing reads: named in the answer and once in the log, or refused."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from structlog.testing import capture_logs

from scripts.api_table import APIS
from services.router.openai.http.unknown_fields import (
    MAX_LOGGED_NAMES,
    MAX_NAME_CHARS,
    MAX_NAMES,
    unknown_fields,
)
from services.router.openai.schema.completion import CompletionBody
from tests.fakes.clients.error_words import code_of
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADER = "x-baton-ignored"
HELLO = [{"role": "user", "content": "Hi"}]
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}
#: A body of every API with all objects that it may hold.
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": HELLO,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {
        "prompt": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    },
    "/v1/messages": {
        "max_tokens": 3,
        "system": [{"type": "text", "text": "Be"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "disabled"},
    },
    "/v1/messages/count_tokens": {
        "messages": HELLO,
        "output_config": {"effort": "low", "format": SCHEMA},
    },
    "/tokenize": {"messages": HELLO},
    "/detokenize": {"tokens": [5]},
    "/inference/v1/generate": {
        "token_ids": [5],
        "sampling_params": {"n": 1},
        "stream": True,
        "stream_options": {"include_usage": True},
    },
}
#: Where those objects are.
PLACES = {
    "/inference/v1/generate": ["", "sampling_params", "stream_options"],
    "/v1/chat/completions": ["", "messages[]", "stream_options"],
    "/v1/completions": ["", "stream_options"],
    "/v1/responses": [
        "", "input[]", "input[].content[]", "input[].summary[]", "input[].output[]", "tools[]",
        "tool_choice", "text", "text.format", "reasoning",
    ],
    "/v1/messages": [
        "", "system[]", "messages[]", "messages[].content[]", "tools[]", "tool_choice", "thinking",
    ],
    "/v1/messages/count_tokens": ["", "output_config", "output_config.format"],
    "/tokenize": ["", "messages[]"],
    "/detokenize": [""],
}  # fmt: skip
EVERY_PLACE = [(url, place) for url, places in PLACES.items() for place in places]


def with_fields(body: Mapping[str, Any], place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body with these fields in the first object at this place."""
    changed: dict[str, Any] = copy.deepcopy(dict(body))
    _set(changed, [step for step in place.split(".") if step], fields)
    return changed


def _set(value: Any, steps: Sequence[str], fields: Mapping[str, Any]) -> bool:
    if not steps:
        value.update(fields)
        return True
    name, rest = steps[0].removesuffix("[]"), steps[1:]
    if not isinstance(value, dict) or name not in value:
        return False
    if not steps[0].endswith("[]"):
        return _set(value[name], rest, fields)
    if isinstance(value[name], str):
        value[name] = [{"type": "input_text", "text": value[name]}]
    return any(_set(item, rest, fields) for item in value[name])


def client(api: OpenAIApi) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def strict() -> httpx.AsyncClient:
    return client(OpenAIApi(strict_fields=True))


@pytest.mark.parametrize(("url", "place"), EVERY_PLACE)
async def test_an_unknown_field_is_named_wherever_it_is(
    http: httpx.AsyncClient, url: str, place: str
) -> None:
    plain = await http.post(url, json=BODIES[url])
    assert plain.status_code == 200, plain.text
    assert HEADER not in plain.headers
    fields = {"lora_request": {"a": 1}, "return_nothing": False, "nothing": None}
    response = await http.post(url, json=with_fields(BODIES[url], place, fields))
    assert response.status_code == 200, response.text
    front = f"{place}." if place else ""
    assert response.headers[HEADER] == f"{front}lora_request, {front}return_nothing"


async def test_the_answer_says_what_is_nearest_and_where_the_list_is(
    http: httpx.AsyncClient,
) -> None:
    asked = {"max_token": 3, "Temperature": 1, "mood": "good", "x" * 5000: 1}
    body = {"messages": HELLO, "stream_options": {"include_usages": True}, "stream": True}
    response = await http.post("/v1/chat/completions", json={**body, **asked})
    assert response.headers["x-baton-fields"] == (
        "max_token is nearest to max_tokens; Temperature is nearest to temperature; "
        "stream_options.include_usages is nearest to stream_options.include_usage; "
        "GET /openapi.json lists the fields"
    )
    listed = (await http.get("/openapi.json")).json()["components"]["schemas"]["ChatBody"]
    assert "max_tokens" in listed["properties"]
    async with strict() as refusing:
        response = await refusing.post("/v1/chat/completions", json={**body, **asked})
    message = response.json()["error"]["message"]
    assert "max_token is nearest to max_tokens; " in message
    assert message.endswith("GET /openapi.json lists the fields")


async def test_an_unknown_field_goes_no_further(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    url = "/v1/responses"
    plain = (await http.post(url, json=BODIES[url])).json()
    ids = api.generator.requests[-1].prompt_token_ids
    body: Any = BODIES[url]
    for place in PLACES[url]:
        body = with_fields(body, place, {"lora_request": "mark"})
    answer = await http.post(url, json=body)
    assert "mark" not in answer.text
    assert answer.json().keys() == plain.keys()
    assert api.generator.requests[-1].prompt_token_ids == ids


@pytest.mark.parametrize(("url", "place"), EVERY_PLACE)
async def test_strict_routers_refuse_it(url: str, place: str) -> None:
    async with strict() as http:
        assert (await http.post(url, json=BODIES[url])).status_code == 200
        body = with_fields(BODIES[url], place, {"lora_request": 1, "num_ctx": {}})
        response = await http.post(url, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    front = f"{place}." if place else ""
    assert f"{front}lora_request, {front}num_ctx" in error["message"]
    if not url.startswith("/v1/messages"):
        param = f"{front}lora_request"
        code = code_of(url, param, "unknown_parameter")
        assert (error["param"], error["code"]) == (param, code)


async def test_what_is_said_has_bounds_and_no_odd_characters(http: httpx.AsyncClient) -> None:
    odd = {"a\r\nset-cookie: x": 1, "ключ": 1, 'q",; z': 1, "x" * 5000: 1}
    response = await http.post("/detokenize", json={"tokens": [5], **odd})
    names = response.headers[HEADER].split(", ")
    assert names == ["a??set-cookie??x", "????", "q???" + "?z", "x" * MAX_NAME_CHARS]
    many = {f"field{i}": 1 for i in range(3000)}
    response = await http.post("/detokenize", json={"tokens": [5], **many})
    names = response.headers[HEADER].split(", ")
    assert names == [*list(many)[:MAX_NAMES], "..."]
    assert len(response.headers[HEADER]) < MAX_NAMES * (MAX_NAME_CHARS + 2) + 3
    turns = [{"role": "user", "content": "a", "mood": "good"}] * 9
    response = await http.post("/tokenize", json={"messages": turns})
    assert response.headers[HEADER] == "messages[].mood"


def test_token_ids_are_not_searched_one_by_one() -> None:
    body = CompletionBody.model_validate({"prompt": [5] * 10_000, "mood": "good"})
    calls: list[str] = []
    sys.setprofile(lambda _, event, __: calls.append(event))
    try:
        found = unknown_fields(body)
    finally:
        sys.setprofile(None)
    assert list(found) == ["mood"]
    assert calls.count("call") < 1000


async def test_the_log_has_each_name_once_and_not_every_name(http: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        for i in range(40):
            fields = {f"name-{i}-{j}": "private" for j in range(MAX_NAMES)}
            await http.post("/detokenize", json={"tokens": [5], "again": 1, **fields})
    logged = [entry["field"] for entry in logs if entry["event"] == "field_ignored"]
    assert logged[0] == "again"
    assert len(logged) == len(set(logged)) == MAX_LOGGED_NAMES
    assert "private" not in str(logs)


async def test_an_error_names_them_too(http: httpx.AsyncClient) -> None:
    body = {"prompt": "a", "min_tokens": 9, "max_tokens": 3, "num_ctx": {}}
    response = await http.post("/v1/completions", json=body)
    assert (response.status_code, response.headers[HEADER]) == (400, "num_ctx")


@pytest.mark.parametrize("url", APIS)
async def test_what_the_documents_call_ignored_is_not_unknown(url: str) -> None:
    assert APIS[url].ignored
    async with strict() as http:
        for name in APIS[url].ignored:
            response = await http.post(url, json={**BODIES[url], name: "x"})
            assert response.status_code == 200, (name, response.text)
            assert HEADER not in response.headers
        for name in APIS[url].refused:
            response = await http.post(url, json={**BODIES[url], name: None})
            assert response.status_code == 200, (name, response.text)


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_an_answer_can_come_back_as_history(url: str) -> None:
    """With all that official clients make of it."""
    async with strict() as http:
        body = {"/v1/responses": {"input": "Hi"}}.get(url, {"messages": HELLO, "max_tokens": 3})
        answer = (await http.post(url, json=body)).json()
        history: list[Any]
        if url == "/v1/responses":
            body = {"input": [{"role": "user", "content": "Hi"}, *answer["output"], *HELLO]}
        else:
            message = answer["choices"][0]["message"] if "choices" in answer else answer
            history = [*HELLO, {**message, "annotations": []}, *HELLO]
            if url == "/v1/messages":
                history[1] = {"role": message["role"], "content": message["content"]}
            body = {"messages": history, "max_tokens": 3}
        response = await http.post(url, json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_a_body_may_name_its_request(
    api: OpenAIApi, http: httpx.AsyncClient, url: str
) -> None:
    body = {**BODIES[url], "stream": False, "request_id": "mine-7"}
    body.pop("stream_options", None)
    response = await http.post(url, json=body)
    assert response.headers["x-request-id"] == "mine-7"
    assert response.json()["id"].endswith("mine-7")
    assert "mine-7" in api.generator.requests[-1].request_id
    # As in vLLM, the header counts before it.
    response = await http.post(url, json=body, headers={"x-request-id": "header"})
    assert response.headers["x-request-id"] == "header"
    assert response.json()["id"].endswith("header")
    again = [(await http.post(url, json=body)) for _ in range(2)]
    assert all(each.headers["x-request-id"] == "mine-7" for each in again)
    first, second = (request.request_id for request in api.generator.requests[-2:])
    assert first != second
    for bad in ("", "a b", "x" * 129, "ä", "a\r\nb: c"):
        response = await http.post(url, json={**body, "request_id": bad})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "request_id"
