"""A long body is read beside the event loop: other coroutines run meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import AfterValidator
from starlette.requests import Request

from services.router.openai.http.body import INLINE_BYTES, parse_body
from services.router.openai.http.unknown_fields import UnknownFields
from services.router.openai.schema.base import RequestObject
from tests.fakes.processes.call_threads import threads_of

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

_TEXT = "a " * INLINE_BYTES
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": _TEXT}], "max_tokens": 4}
_GENERATING = "services.router.openai.generating"


async def test_other_coroutines_run_while_a_body_is_parsed() -> None:
    ran = threading.Event()

    def waits(value: Any) -> Any:
        assert ran.wait(timeout=10)
        return value

    class Waits(RequestObject):
        text: Annotated[str, AfterValidator(waits)]

    asyncio.get_running_loop().call_soon(ran.set)
    body = b'{"text": "' + _TEXT.encode() + b'"}'
    request = Request({"type": "http", "headers": [], "state": {}})
    assert (await parse_body(request, Waits, body, UnknownFields())).text == _TEXT


@pytest.mark.parametrize(
    ("url", "body", "place"),
    [
        ("/v1/chat/completions", _CHAT, f"{_GENERATING}.chat.read_tools"),
        ("/v1/chat/completions", _CHAT, f"{_GENERATING}.chat.check_prompt"),
        ("/v1/chat/completions", _CHAT, "services.router.openai.http.body.is_too_deep"),
        (
            "/v1/chat/completions/batch",
            {**_CHAT, "messages": [_CHAT["messages"]]},
            f"{_GENERATING}.chat_batch._one",
        ),
        ("/v1/completions", {"prompt": _TEXT}, f"{_GENERATING}.completions.read_given"),
        ("/v1/completions", {"prompt": _TEXT}, f"{_GENERATING}.completions.check_prompt"),
        (
            "/v1/responses",
            {"input": _TEXT},
            "services.router.openai.responses_api.endpoint.chat_fields",
        ),
        ("/v1/messages", _CHAT, "services.router.anthropic.endpoint.chat_fields"),
        (
            "/detokenize",
            {"tokens": [1] * INLINE_BYTES},
            "services.router.openai.tokens_api.tokenize.check_vocabulary",
        ),
    ],
)
async def test_what_grows_with_a_body_runs_in_a_thread(
    api: OpenAIApi,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    body: dict[str, Any],
    place: str,
) -> None:
    threads = threads_of(monkeypatch, place)
    response = await http.post(url, json=body)
    assert response.status_code in (200, 400), response.text
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": [5] * 500}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1 " * 240}]}),
        ("/inference/v1/generate", {"token_ids": [5] * 500}),
    ],
)
async def test_many_log_probabilities_are_written_in_a_thread(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, url: str, body: dict[str, Any]
) -> None:
    module = {
        "/v1/completions": "replies.completion_reply",
        "/v1/chat/completions": "replies.chat_reply",
        "/inference/v1/generate": "tokens_api.reply",
    }[url]
    threads = threads_of(monkeypatch, f"services.router.openai.{module}.prompt_logprobs")
    sampling = {"max_tokens": 4, "prompt_logprobs": 5}
    more = {"sampling_params": sampling} if "token_ids" in body else sampling
    response = await http.post(url, json={**body, **more})
    assert response.status_code == 200, response.text
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": [[5] * 500] * 2, "echo": True, "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}]}),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"n": 2}}),
    ],
)
async def test_many_answers_are_encoded_in_a_thread_as_few_are(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, url: str, body: dict[str, Any]
) -> None:
    place = "services.router.openai.replies.long_reply"

    async def ask() -> dict[str, Any]:
        response = await http.post(url, json=body | {"request_id": "r"})
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return {key: reply[key] for key in reply if key not in ("created", "timings")}

    threads = threads_of(monkeypatch, f"{place}._chunks")
    monkeypatch.setattr(f"{place}.INLINE_SIZE", 1)
    found = await ask()
    assert threads
    assert threading.main_thread() not in threads
    monkeypatch.setattr(f"{place}.INLINE_SIZE", 10_000)
    assert await ask() == found
    assert len(threads) == 1
