"""Stored responses: conversations that go on, responses in the background, and whose they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest
from openai.types.responses import Response as OfficialResponse

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.keeper import ResponseKeeper
from services.router.openai.responses_api.stored.memory import MemoryStore
from services.router.request.generation import AnswerPiece
from shared.errors import WorkerLostError
from tests.fakes.clients.official_events import response_events
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import CALLS, FORMATS, TEMPLATE, THOUGHT, TIME, WEATHER
from tests.fakes.scripted.generator import HANG

if TYPE_CHECKING:
    from typing import Any

URL = "/v1/responses"
LIMITS = StoreLimits(max_entries=100, max_bytes=1 << 20, max_age_s=60)


@pytest.fixture
def keeper() -> ResponseKeeper:
    return ResponseKeeper(MemoryStore(LIMITS))


@pytest.fixture
def api(keeper: ResponseKeeper) -> OpenAIApi:
    return OpenAIApi(responses=keeper)


def client_of(api: OpenAIApi) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=api.app)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def respond(http: httpx.AsyncClient, given: Any = "Hi", **fields: Any) -> Any:
    response = await http.post(URL, json={"input": given, **fields})
    assert response.status_code == 200, response.text
    OfficialResponse.model_validate(response.json())
    return response.json()


async def fetch(http: httpx.AsyncClient, response_id: str, **headers: str) -> Any:
    response = await http.get(f"{URL}/{response_id}", headers=headers)
    assert response.status_code == 200, response.text
    OfficialResponse.model_validate(response.json())
    return response.json()


async def until(http: httpx.AsyncClient, response_id: str, *statuses: str) -> Any:
    for _ in range(1000):
        found = await fetch(http, response_id)
        if found["status"] in statuses:
            return found
        await asyncio.sleep(0)
    pytest.fail(f"{response_id} never was {statuses}")


async def until_it_hangs(api: OpenAIApi) -> None:
    for _ in range(1000):
        if api.generator.hanging.acquire(blocking=False):
            return
        await asyncio.sleep(0)
    pytest.fail("the answer did not begin")


async def test_a_response_is_kept_unless_the_client_says_no(http: httpx.AsyncClient) -> None:
    reply = await respond(http)
    assert reply["store"] is True
    assert await fetch(http, reply["id"]) == reply
    other = await respond(http, store=False)
    assert other["store"] is False
    assert (await http.get(f"{URL}/{other['id']}")).status_code == 404


async def test_a_streamed_response_is_kept_before_its_last_event(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    events = response_events(response.text)
    last = events[-1]["response"]
    assert events[0]["response"]["id"] == last["id"]
    assert await fetch(http, last["id"]) == last


async def test_ids_are_not_made_of_the_requests(http: httpx.AsyncClient) -> None:
    headers = {"x-request-id": "guess-me"}
    replies = [(await http.post(URL, json={"input": "a"}, headers=headers)) for _ in range(2)]
    ids = [reply.json()["id"] for reply in replies]
    assert len(set(ids)) == 2
    assert all(len(name) == 53 and "guess" not in name for name in ids)


async def test_what_went_wrong_is_not_kept(
    api: OpenAIApi, http: httpx.AsyncClient, keeper: ResponseKeeper
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a"), WorkerLostError("decode-0 is gone")])
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    last = response_events(response.text)[-1]["response"]
    assert last["status"] == "failed"
    assert (await http.get(f"{URL}/{last['id']}")).status_code == 404


async def test_a_conversation_goes_on_as_if_it_had_been_sent(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    first = await respond(http, "Hi", instructions="Be")
    second = await respond(http, "More", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    third = await respond(http, "End", previous_response_id=second["id"], instructions="Stop")
    user = [{"role": "user", "content": text} for text in ("Hi", "More", "End")]
    await respond(
        http,
        [user[0], *first["output"], user[1], *second["output"], user[2]],
        instructions="Stop",
        store=False,
    )
    stored, sent = api.generator.requests[-2:]
    assert stored.prompt_token_ids == sent.prompt_token_ids
    text = api.tokenizer.decode(stored.prompt_token_ids)
    # Instructions are of one response only.
    assert "Stop" in text
    assert "Be" not in text
    assert third["status"] == "completed"


async def test_reasoning_and_calls_go_on_as_if_they_had_been_sent(
    keeper: ResponseKeeper,
) -> None:
    api = OpenAIApi(
        THOUGHT + CALLS,
        formats=FORMATS,
        chat_template=TEMPLATE,
        max_model_len=2048,
        responses=keeper,
    )
    tools = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]
    async with client_of(api) as http:
        first = await respond(http, "Hi", tools=tools)
        kinds = [item["type"] for item in first["output"]]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "warm"}
            for item in first["output"][2:]
        ]
        await respond(http, results, tools=tools, previous_response_id=first["id"])
        history = [{"role": "user", "content": "Hi"}, *first["output"], *results]
        await respond(http, history, tools=tools)
    stored, sent = api.generator.requests[-2:]
    assert stored.prompt_token_ids == sent.prompt_token_ids
    text = api.tokenizer.decode(stored.prompt_token_ids)
    assert '"city": "Rom"' in text
    assert text.count("warm") == 2


async def test_tokens_of_a_conversation_are_counted(http: httpx.AsyncClient) -> None:
    first = await respond(http)
    body = {"input": "More", "previous_response_id": first["id"]}
    counted = await http.post(f"{URL}/input_tokens", json=body)
    second = await respond(http, "More", previous_response_id=first["id"])
    assert counted.json()["input_tokens"] == second["usage"]["input_tokens"]


async def test_a_conversation_outlives_its_beginning(http: httpx.AsyncClient) -> None:
    first = await respond(http)
    second = await respond(http, "More", previous_response_id=first["id"])
    gone = await http.delete(f"{URL}/{first['id']}")
    assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert (await http.delete(f"{URL}/{first['id']}")).status_code == 404
    third = await respond(http, "End", previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_tenants_do_not_see_each_other(http: httpx.AsyncClient) -> None:
    mine, theirs = {"x-test-tenant": "a"}, {"x-test-tenant": "b"}
    body = {"input": "Hi", "background": True}
    [whole, behind] = [
        (await http.post(URL, json={**body, "background": there}, headers=mine)).json()["id"]
        for there in (False, True)
    ]
    for name in (whole, behind):
        for headers in (theirs, {}):
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
                found = await http.request(method, f"{URL}/{name}{path}", headers=headers)
                assert found.status_code == 404, (method, path)
            body = {"input": "Hi", "previous_response_id": name}
            refused = await http.post(URL, json=body, headers=headers)
            assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert (await http.get(f"{URL}/{name}", headers=mine)).status_code == 200


async def test_a_background_response_is_fetched_later(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    first = await respond(http, background=True)
    assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
    reply = await until(http, first["id"], "completed")
    assert reply["output"][0]["content"][0]["text"] == "Hello runner"
    assert reply["usage"]["output_tokens"] > 0
    assert api.generator.num_open == 0
    # Nothing is left to cancel, and going on is possible.
    assert (await http.post(f"{URL}/{first['id']}/cancel")).json() == reply
    await respond(http, "More", previous_response_id=first["id"])


async def test_a_background_response_waits_then_begins(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [HANG])
    waiting = await respond(http, background=True)
    await until_it_hangs(api)
    api.plays(lambda _: [AnswerPiece(index=0, text="a", token_ids=(5,)), HANG])
    begun = await respond(http, background=True)
    await until(http, begun["id"], "in_progress")
    assert (await fetch(http, waiting["id"]))["status"] == "queued"
    refused = await http.post(URL, json={"input": "a", "previous_response_id": begun["id"]})
    assert "in_progress" in refused.json()["error"]["message"]
    for made, texts in ((waiting, []), (begun, ["a"])):
        cancelled = (await http.post(f"{URL}/{made['id']}/cancel")).json()
        OfficialResponse.model_validate(cancelled)
        assert cancelled["status"] == "cancelled"
        assert [item["content"][0]["text"] for item in cancelled["output"]] == texts
        assert await fetch(http, made["id"]) == cancelled
    assert api.generator.num_open == 0


async def test_a_response_that_is_cancelled_before_it_starts_has_ended(
    api: OpenAIApi, http: httpx.AsyncClient, keeper: ResponseKeeper
) -> None:
    made = await respond(http, background=True)
    await keeper.runs.cancel(("", made["id"]))
    assert (await fetch(http, made["id"]))["status"] in ("cancelled", "completed")
    assert api.generator.num_open == 0


async def test_a_deleted_response_ends_and_does_not_come_back(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a"), HANG])
    made = await respond(http, background=True)
    await until(http, made["id"], "in_progress")
    assert (await http.delete(f"{URL}/{made['id']}")).status_code == 200
    assert api.generator.num_open == 0
    assert (await http.get(f"{URL}/{made['id']}")).status_code == 404


async def test_a_background_response_that_fails_says_why(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="a"), WorkerLostError("decode-0 is gone")])
    made = await respond(http, background=True)
    reply = await until(http, made["id"], "failed")
    assert reply["error"] == {"code": "server_error", "message": "decode-0 is gone"}
    refused = await http.post(URL, json={"input": "a", "previous_response_id": made["id"]})
    assert refused.json()["error"]["param"] == "previous_response_id"


async def test_a_router_that_stops_fails_what_is_in_the_background(
    api: OpenAIApi, http: httpx.AsyncClient, keeper: ResponseKeeper
) -> None:
    api.plays(lambda _: [HANG])
    made = await respond(http, background=True)
    await keeper.stop()
    reply = await fetch(http, made["id"])
    assert reply["status"] == "failed"
    assert "router stopped" in reply["error"]["message"]
    assert api.generator.num_open == 0
    refused = await http.post(URL, json={"input": "Hi", "background": True})
    assert refused.status_code == 503


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"background": True, "temperature": 9}, "temperature", "invalid_value"),
        (
            {"background": True, "background_options": {"a": 1}},
            "background_options",
            "unsupported_parameter",
        ),
        ({"store": "yes"}, "store", "invalid_type"),
    ],
)
async def test_wrong_fields_are_named(
    api: OpenAIApi, http: httpx.AsyncClient, fields: Any, param: str, code: str
) -> None:
    response = await http.post(URL, json={"input": "Hi", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert not api.generator.requests


async def test_what_is_not_offered_is_named(http: httpx.AsyncClient) -> None:
    made = await respond(http)
    one = f"{URL}/{made['id']}"
    for query, param in (
        ({"stream": "true"}, "stream"),
        ({"stream": "maybe"}, "stream"),
        ({"starting_after": "3"}, "starting_after"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
        ({"stream": "true", "starting_after": "-1"}, "starting_after"),
    ):
        refused = await http.get(one, params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert (await http.get(one, params={"stream": "false"})).status_code == 200
    cancelled = await http.post(f"{one}/cancel")
    assert "not made in the background" in cancelled.json()["error"]["message"]
    assert (await http.get(f"{one}/input_items")).status_code == 400


async def test_a_response_over_the_bounds_is_not_kept() -> None:
    limits = StoreLimits(max_entries=9, max_bytes=100, max_age_s=60)
    api = OpenAIApi(responses=ResponseKeeper(MemoryStore(limits)))
    async with client_of(api) as http:
        assert (await respond(http))["store"] is False
        refused = await http.post(URL, json={"input": "Hi", "background": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert len(api.generator.requests) == 1
