"""Every refusal has OpenAI's shape, the right status and the parameter's name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from services.router.openai.errors import error_json, error_status
from services.router.request.generation import AnswerPiece
from shared import errors
from tests.fakes.clients.error_words import code_of, type_of
from tests.fakes.router.openai_api import LIMITS, MAX_MODEL_LEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
JSON = {"content-type": "application/json"}


def read_error(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def with_message(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"min_p": 2}, "min_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": LIMITS.max_n + 1}, "n", "invalid_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ["a", None]}, "stop", "invalid_type"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": ["a"] * (LIMITS.max_stop_strings + 1)}, "stop", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"bad_words": [""]}, "bad_words[0]", "invalid_value"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": 1}, "stream_options", "invalid_type"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_type",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "invalid_value",
        ),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
        ({"priority": 2**40}, "priority", "invalid_value"),
        ({"seed": 2**70}, "seed", "invalid_value"),
        ({"max_tokens": MAX_MODEL_LEN}, "max_tokens", "context_length_exceeded"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format", "unsupported_parameter"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "invalid_value"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    ],
)
@pytest.mark.parametrize("url", [CHAT, COMPLETIONS])
async def test_wrong_fields_are_named(
    api: OpenAIApi, http: httpx.AsyncClient, url: str, fields: Any, param: str, code: str
) -> None:
    base: dict[str, Any] = {"messages": HELLO} if url == CHAT else {"prompt": "a"}
    error = read_error(await http.post(url, json={**base, **fields}), 400)
    assert (error["param"], error["code"]) == (param, code_of(url, param, code))
    assert param.split("[")[0].split(".")[0] in error["message"] or code.startswith("context")
    assert error["type"] == type_of(url, param)
    assert api.generator.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        (with_message(role="robot", content="Hi"), "messages[0].role"),
        (with_message(content="Hi"), "messages[0].role"),
        (with_message(role="user"), "messages[0].content"),
        (with_message(role="user", content=None), "messages[0].content"),
        (with_message(role="user", content=5), "messages[0].content"),
        (with_message(role="user", content=["Hi"]), "messages[0].content[0]"),
        (with_message(role="user", content=[{"type": "text"}]), "messages[0].content[0].text"),
        (
            with_message(role="user", content=[{"type": "image_url"}]),
            "messages[0].content[0].type",
        ),
        (with_message(role="assistant", tool_calls=5), "messages[0].tool_calls"),
        (with_message(role="assistant", tool_calls=[5]), "messages[0].tool_calls[0].function"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": 1}, "logprobs"),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "max_completion_tokens": 10**6}, "max_completion_tokens"),
        ({"messages": HELLO, "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        (
            {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (with_message(role="user", content="x " * MAX_MODEL_LEN), "messages"),
    ],
)
async def test_wrong_conversations_are_named(
    http: httpx.AsyncClient, body: Any, param: str
) -> None:
    assert read_error(await http.post(CHAT, json=body), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": ["a", [5]]}, "prompt[1]"),
        ({"prompt": [5, True]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [[5], [5.0]]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": ["a"] * (LIMITS.max_prompts + 1)}, "prompt"),
        ({"prompt": [5] * MAX_MODEL_LEN}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
async def test_wrong_prompts_are_named(http: httpx.AsyncClient, body: Any, param: str) -> None:
    assert read_error(await http.post(COMPLETIONS, json=body), 400)["param"] == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"a":"\\ud800"}', b"[" * 5000, b'{"a":NaN}{'],
)
async def test_what_is_no_json_object_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    error = read_error(await http.post(CHAT, content=body, headers=JSON), 400)
    assert error["param"] is None
    assert error["code"] in ("invalid_json", "invalid_type")


@pytest.mark.parametrize("announced", [True, False])
async def test_large_bodies_are_refused(http: httpx.AsyncClient, announced: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(LIMITS.max_body_bytes // 1000 + 1):
            yield b" " * 1000

    content = b" " * (LIMITS.max_body_bytes + 1) if announced else chunks()
    error = read_error(await http.post(CHAT, content=content, headers=JSON), 413)
    assert error["code"] == "request_too_large"


async def test_unknown_models_are_not_found(http: httpx.AsyncClient) -> None:
    body = {"model": "other", "messages": HELLO, "prompt": "a", "tokens": [5]}
    for url in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
        error = read_error(await http.post(url, json=body), 404)
        code = code_of(url, "model", "model_not_found", 404)
        assert (error["param"], error["code"]) == ("model", code)
        assert error["type"] == type_of(url, "model", 404)


async def test_unknown_routes_and_methods(http: httpx.AsyncClient) -> None:
    error = read_error(await http.post("/v1/nowhere", json={}), 404)
    assert "POST /v1/nowhere" in error["message"]
    response = await http.get(CHAT)
    read_error(response, 405)
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (errors.InvalidRequestError("bad", param="seed"), 400, "invalid_value"),
        (errors.UnsupportedError("no", param="seed"), 400, "unsupported_parameter"),
        (errors.OverloadedError("busy", retry_after_s=2.5), 429, "rate_limit_exceeded"),
        (errors.NoWorkerError("none"), 503, "unavailable"),
        (errors.DeadlineError("late"), 504, "deadline_exceeded"),
        (errors.InternalError("secret"), 500, "internal_error"),
        (
            errors.TransferError(errors.TransferFailure.CORRUPT, "secret"),
            502,
            "internal_error",
        ),
        (RuntimeError("secret"), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_errors_of_the_pipeline_have_their_status(
    api: OpenAIApi,
    http: httpx.AsyncClient,
    raised: Exception,
    status: int,
    code: str,
    stream: bool,
    prompt: Any,
) -> None:
    api.plays(lambda _: [raised])
    response = await http.post(COMPLETIONS, json={"prompt": prompt, "stream": stream})
    error = read_error(response, status)
    assert error["code"] == code
    assert "secret" not in response.text
    assert error["param"] == ("seed" if status == 400 else None)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert api.generator.num_open == 0


async def test_retry_after_is_whole_seconds_and_exact_milliseconds(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [errors.OverloadedError("busy", retry_after_s=2.25)])
    response = await http.post(CHAT, json={"messages": HELLO})
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2250"


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_an_error_in_the_middle_of_a_stream_ends_it(
    api: OpenAIApi, http: httpx.AsyncClient, prompt: Any
) -> None:
    lost = errors.WorkerLostError("decode-0 is gone")
    api.plays(lambda _: [AnswerPiece(index=0, text="Hel", token_ids=(5,)), lost])
    response = await http.post(COMPLETIONS, json={"prompt": prompt, "stream": True})
    assert response.status_code == 200
    *chunks, error, done, rest = response.text.split("\n\n")
    assert 1 <= len(chunks) <= 2
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "unavailable"
    assert (done, rest) == ("data: [DONE]", "")
    assert api.generator.num_open == 0


async def test_a_bug_in_the_middle_of_a_stream_shows_nothing(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="Hel"), RuntimeError("secret")])
    response = await http.post(CHAT, json={"messages": HELLO, "stream": True})
    assert "secret" not in response.text
    assert "internal_error" in response.text
    assert response.headers["x-request-id"] in response.text


def all_errors() -> list[type[errors.BatonError]]:
    found = [errors.BatonError]
    for cls in found:
        found += cls.__subclasses__()
    return found


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_of_the_tree_has_a_body(cls: type[errors.BatonError]) -> None:
    error = cls.__new__(cls)
    Exception.__init__(error, "words")
    error.param = error.code = None  # type: ignore[attr-defined]
    assert 400 <= error_status(error) < 600
    body = json.loads(error_json(error, request_id="r"))
    assert body["error"]["type"]
