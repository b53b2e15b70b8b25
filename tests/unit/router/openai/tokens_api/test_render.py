"""A body as a request of tokens, and tokens as its reply: together they are the endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ChatFormats
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    import httpx

ANSWER = '<think>Hm</think>Sure<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "Hi"}]
#: What differs in two replies to the same request.
_OWN = {"id", "created", "timings", "usage"}


@pytest.fixture
def api() -> OpenAIApi:
    formats = ChatFormats(tools=TOOL_FORMATS["hermes"], reasoning=REASONING_FORMATS["think"])
    return OpenAIApi(ANSWER, formats=formats)


async def post(http: httpx.AsyncClient, url: str, body: Any) -> Any:
    response = await http.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def same(reply: Any) -> Any:
    """A reply without what is its own; calls have ids of their own."""
    kept = {name: value for name, value in reply.items() if name not in _OWN}
    for choice in kept["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    return kept


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "seed": 5, "temperature": 0.5, "max_completion_tokens": 99, "stop": ["zzz"]},
        {"tools": [TOOL], "logprobs": True, "top_logprobs": 2},
        {"tools": [TOOL], "tool_choice": "required", "repetition_penalty": 1.5},
        {"structured_outputs": {"regex": "a+"}, "thinking_token_budget": 7},
        {"response_format": {"type": "json_object"}, "include_reasoning": False},
        {"min_tokens": 2, "truncate_prompt_tokens": 3},
    ],
)
async def test_a_chat_in_two_steps_is_the_chat(
    api: OpenAIApi, http: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    body = {"messages": HELLO, "return_token_ids": True, "max_tokens": 150, **fields}
    whole = await post(http, "/v1/chat/completions", body)
    asked = api.generator.requests[-1]
    rendered = await post(http, "/v1/chat/completions/render", body)
    assert len(api.generator.requests) == 1, "nothing is generated"
    tokens = await post(http, "/inference/v1/generate", rendered)
    again = api.generator.requests[-1]
    assert again.prompt_token_ids == asked.prompt_token_ids
    for name in ("n", "seed", "temperature", "max_tokens", "stop", "min_tokens", "logprobs",
                 "repetition_penalty", "thinking_token_budget", "thinking"):  # fmt: skip
        assert getattr(again.params, name) == getattr(asked.params, name), name
    ours, theirs = asked.params.grammar, again.params.grammar
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert (theirs.kind, theirs.text, theirs.thinking) == (ours.kind, ours.text, ours.thinking)
    derendered = await post(
        http,
        "/v1/chat/completions/derender",
        {
            "generate_response": tokens,
            "chat_request": body,
            "prompt_token_ids": again.prompt_token_ids,
        },
    )
    assert same(derendered) == same(whole)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert derendered["usage"][name] == whole["usage"][name]


async def test_the_text_ends_at_a_stop_string(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    ids = api.tokenizer.encode("<think>Hm</think>Sure, so")
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "stop_reason": ", "}
    body = {
        "generate_response": {"choices": [choice]},
        "chat_request": {"messages": HELLO, "stop": ", "},
        "prompt_tokens": 7,
    }
    reply = await post(http, "/v1/chat/completions/derender", body)
    [found] = reply["choices"]
    assert (found["message"]["content"], found["message"]["reasoning"]) == ("Sure", "Hm")
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", ", ")
    assert reply["usage"]["prompt_tokens"] == 7


async def test_prompts_in_two_steps_are_the_completion(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "logprobs": 1, "max_tokens": 99, "seed": 2}
    whole = await post(http, "/v1/completions", body)
    asked = api.generator.requests[:2]
    rendered = await post(http, "/v1/completions/render", body)
    replies = [await post(http, "/inference/v1/generate", each) for each in rendered]
    again = api.generator.requests[2:]
    assert sorted(r.prompt_token_ids for r in again) == sorted(r.prompt_token_ids for r in asked)
    derendered = await post(
        http,
        "/v1/completions/derender",
        {
            "generate_responses": replies,
            "completion_request": body,
            "prompt_token_ids": [each["token_ids"] for each in rendered],
        },
    )
    assert same(derendered) == same(whole)


async def test_offsets_are_places_in_the_prompts_text(http: httpx.AsyncClient) -> None:
    body = {"prompt": ["Once upon", [5, 6]], "return_token_offsets": True}
    del body["prompt"][1]
    [rendered] = await post(http, "/v1/completions/render", body)
    offsets = rendered["token_offsets"]
    assert len(offsets) == len(rendered["token_ids"])
    assert "".join("Once upon"[start:end] for start, end in offsets) == "Once upon"
    [tokens] = await post(http, "/v1/completions/render", {**body, "prompt": [5, 6]})
    assert tokens["token_offsets"] is None


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/v1/completions/render", {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
        ("/v1/completions/render", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/chat/completions/render", {"messages": HELLO, "best_of": 3}, "best_of"),
        ("/v1/chat/completions/render", {"messages": []}, "messages"),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": []}},
            "generate_response.choices",
        ),
        (
            "/v1/chat/completions/derender",
            {"stream": True, "generate_response": {"choices": [{"index": 0, "token_ids": [5]}]}},
            "stream",
        ),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": [{"index": 3, "token_ids": [5]}]}},
            "generate_response.choices",
        ),
        (
            "/v1/completions/derender",
            {
                "generate_responses": [{"choices": [{"index": 0, "token_ids": [5]}]}],
                "prompt_tokens": [1, 2],
            },
            "prompt_tokens",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, url: str, body: dict[str, Any], param: str
) -> None:
    response = await http.post(url, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
