"""The official client against a real server on a loopback port."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import openai
import pytest

from services.router.request.generation import AnswerPiece
from shared import errors
from tests.fakes.router.openai_api import LIMITS, MODEL, OpenAIApi, serve
from tests.fakes.scripted.generator import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

HELLO: Any = [{"role": "user", "content": "Hi"}]
ANSWER = "Hello runner"
JSON = "content-type: application/json"
#: Closing a connection must reach the pipeline within this.
PROMPTLY_S = 2.0


@pytest.fixture
def api() -> OpenAIApi:
    return OpenAIApi(ANSWER)


@pytest.fixture
def port(api: OpenAIApi) -> Iterator[int]:
    with serve(api.app) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "alias"]
    assert client.models.retrieve("alias").id == "alias"


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1, max_completion_tokens=9
    )
    [choice] = reply.choices
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(position.token for position in choice.logprobs.content) == ANSWER
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == reply.usage.prompt_tokens - 1
    assert reply.timings["total_ms"] == 12.5  # type: ignore[attr-defined]


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(chunks)


def test_the_clients_own_accumulator_understands_the_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, n=2) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [ANSWER, ANSWER]
    assert final.choices[1].message.role == "assistant"


def test_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL,
        prompt=["a", "b"],
        n=2,
        echo=True,
        logprobs=1,
        extra_body={"ignore_eos": True, "min_tokens": 1, "top_k": 5},
    )
    assert [c.text for c in reply.choices] == ["a" + ANSWER] * 2 + ["b" + ANSWER] * 2
    assert reply.choices[3].logprobs is not None
    assert reply.choices[3].logprobs.text_offset is not None
    assert reply.choices[3].logprobs.text_offset[1] == 1


def test_completion_stream_of_token_ids(client: openai.OpenAI, api: OpenAIApi) -> None:
    stream = client.completions.create(model=MODEL, prompt=[[5, 6], [7]], stream=True)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [ANSWER, ANSWER]
    assert api.generator.num_open == 0


def test_raw_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().id == "chatcmpl-mine"


async def test_async_client(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model=MODEL, messages=HELLO) for _ in range(8))
        )
        assert {reply.choices[0].message.content for reply in replies} == {ANSWER}
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == ANSWER


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.InvalidRequestError("bad", param="seed"), openai.BadRequestError),
        (errors.AuthenticationError("who?"), openai.AuthenticationError),
        (errors.OverloadedError("busy"), openai.RateLimitError),
        (errors.NoWorkerError("none"), openai.InternalServerError),
        (errors.DeadlineError("late"), openai.InternalServerError),
        (RuntimeError("a bug"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_become_the_clients_classes(
    client: openai.OpenAI, api: OpenAIApi, raised: Exception, expected: Any, stream: bool
) -> None:
    api.plays(lambda _: [raised])
    with pytest.raises(expected) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, stream=stream)
    error = caught.value
    assert error.type
    assert error.request_id == error.response.headers["x-request-id"]
    if isinstance(error, openai.BadRequestError):
        assert error.param == "seed"


def test_refusals_become_the_clients_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as elsewhere:
        client.moderations.create(model=MODEL, input="a")
    assert elsewhere.value.code == "unsupported_endpoint"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "robot", "content": "Hi"}],  # type: ignore[list-item, misc]
        )
    assert bad.value.param == "messages[0].role"


@pytest.mark.parametrize("times", [1, 500])
def test_a_body_over_the_limit(client: openai.OpenAI, times: int) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=MODEL, prompt="a" * LIMITS.max_body_bytes * times)
    assert caught.value.status_code == 413
    assert client.models.list().data


def test_an_error_in_the_middle_of_a_stream_is_raised(
    client: openai.OpenAI, api: OpenAIApi
) -> None:
    lost = errors.WorkerLostError("decode-0 is gone")
    api.plays(lambda _: [AnswerPiece(index=0, text="Hel"), lost])
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert next(stream).choices[0].delta.content == "Hel"
    with pytest.raises(openai.APIError, match="decode-0 is gone") as caught:
        next(stream)
    assert caught.value.code == "unavailable"


@pytest.mark.parametrize("num_prompts", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", [(), (AnswerPiece(index=0, text="Hel"),)])
async def test_a_closed_connection_closes_the_iterator(
    port: int, api: OpenAIApi, num_prompts: int, stream: bool, first: tuple[AnswerPiece, ...]
) -> None:
    api.plays(lambda _: [*first, HANG])
    body = json.dumps({"prompt": ["a"] * num_prompts, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    head += "content-type: application/json\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    await writer.drain()
    for _ in range(num_prompts):
        assert await asyncio.to_thread(api.generator.hanging.acquire, timeout=5)
    assert api.generator.num_open == num_prompts
    writer.close()
    await writer.wait_closed()
    for _ in range(num_prompts):
        assert await asyncio.to_thread(api.generator.closed.acquire, timeout=PROMPTLY_S)


def test_closing_the_clients_stream_closes_the_iterator(
    client: openai.OpenAI, api: OpenAIApi
) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="Hel"), HANG])
    with client.chat.completions.create(model=MODEL, messages=HELLO, stream=True) as stream:
        assert next(stream).choices[0].delta.content == "Hel"
    assert api.generator.closed.acquire(timeout=PROMPTLY_S)


def test_curl_sees_each_chunk_at_once(port: int, api: OpenAIApi) -> None:
    api.plays(lambda _: [AnswerPiece(index=0, text="Hel"), HANG])
    url = f"http://127.0.0.1:{port}/v1/completions"
    command = ["curl", "-sN", url, "-H", JSON, "-d", '{"prompt": "a", "stream": true}']
    with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        line = curl.stdout.readline()
        # The answer is not over: the chunk came although nothing will follow it.
        assert api.generator.num_open == 1
        curl.terminate()
    assert json.loads(line.removeprefix(b"data: "))["choices"][0]["text"] == "Hel"
    assert api.generator.closed.acquire(timeout=PROMPTLY_S)


def test_curl_gets_the_whole_stream(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    body = json.dumps({"messages": HELLO, "stream": True})
    output = subprocess.run(
        ["curl", "-sN", url, "-H", JSON, "-d", body], capture_output=True, check=True, timeout=20
    ).stdout
    *chunks, done, rest = output.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(chunk.startswith(b"data: {") for chunk in chunks)
