"""POST /inference/v1/generate: what goes to the pipeline, and what comes back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from services.router.parsers.find import REASONING_FORMATS
from services.router.parsers.plan import ChatFormats
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    import httpx

URL = "/inference/v1/generate"
ANSWER = "Hello runner"
PROMPT = [5, 6, 7]


@pytest.fixture
def api() -> OpenAIApi:
    return OpenAIApi(ANSWER, formats=ChatFormats(reasoning=REASONING_FORMATS["think"]))


async def generate(http: httpx.AsyncClient, **fields: Any) -> Any:
    body = {"token_ids": PROMPT, "sampling_params": {}, **fields}
    response = await http.post(URL, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(http: httpx.AsyncClient, **fields: Any) -> list[Any]:
    body = {"token_ids": PROMPT, "sampling_params": {}, "stream": True, **fields}
    response = await http.post(URL, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


async def test_tokens_go_in_and_come_out(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    ids = api.tokenizer.encode(ANSWER)
    reply = await generate(http, request_id="mine")
    assert reply["request_id"] == "mine"
    assert reply["output_mode"] == "tokens"
    [choice] = reply["choices"]
    assert choice["token_ids"] == ids
    assert "text" not in choice
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] == 3
    assert reply["prompt_token_ids"] is None
    request = api.generator.requests[-1]
    assert request.prompt_token_ids == tuple(PROMPT)
    assert request.params.max_tokens is None


async def test_a_stream_has_the_same_tokens(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    found = await chunks(
        http, stream_options={"include_usage": True}, return_token_ids=True, output_mode="text"
    )
    *parts, last = found
    ids = [i for part in parts for i in part["choices"][0]["token_ids"]]
    assert ids == api.tokenizer.encode(ANSWER)
    assert "".join(part["choices"][0]["text"] for part in parts) == ANSWER
    assert [part["prompt_token_ids"] for part in parts] == [PROMPT] + [None] * (len(parts) - 1)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(ids)
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


async def test_logprobs_have_ids_and_in_text_mode_texts(http: httpx.AsyncClient) -> None:
    reply = await generate(http, sampling_params={"logprobs": 2, "prompt_logprobs": 1})
    [choice] = reply["choices"]
    for token_id, position in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
        assert position["token_id"] == position["top_logprobs"][0]["token_id"] == token_id
        assert position["rank"] == 1
        assert [token["rank"] for token in position["top_logprobs"]] == [1, 2]
    assert reply["prompt_logprobs"][0] is None
    streamed = await chunks(http, sampling_params={"logprobs": 2})
    found = [each for part in streamed for each in part["choices"][0]["logprobs"]["content"]]
    assert found == choice["logprobs"]["content"]
    text = await generate(http, sampling_params={"logprobs": 0}, output_mode="text")
    content = text["choices"][0]["logprobs"]["content"]
    assert "".join(position["token"] for position in content) == ANSWER


async def test_every_parameter_is_that_of_the_other_endpoints(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    sampling = {
        "n": 2, "temperature": 0.5, "seed": 3, "max_tokens": 7, "stop": ["x"], "top_k": -1,
        "bad_words": ["no"], "structured_outputs": {"regex": "a+"}, "repetition_penalty": 1.5,
        "skip_special_tokens": False, "detokenize": True, "thinking_token_budget": 4,
    }  # fmt: skip
    reply = await generate(http, sampling_params=sampling, priority=3)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    from_tokens = api.generator.requests[-1]
    body = {"prompt": PROMPT, "priority": 3, **sampling}
    response = await http.post("/v1/completions", json=body)
    assert response.headers["x-baton-ignored"] == "detokenize"
    other = api.generator.requests[-1]
    assert from_tokens.priority == other.priority == 3
    assert from_tokens.params.grammar is not None
    assert from_tokens.params.grammar.thinking is not None, "it may reason first"
    for name in ("temperature", "seed", "stop", "bad_words", "thinking_token_budget", "thinking"):
        assert getattr(from_tokens.params, name) == getattr(other.params, name)
    await generate(http, sampling_params=sampling, reasoning_ended=True)
    grammar = api.generator.requests[-1].params.grammar
    assert grammar is not None
    assert grammar.thinking is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": "text"}, "token_ids"),
        ({"token_ids": [10**6]}, "token_ids"),
        ({"token_ids": [5] * 600}, "token_ids"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"max_tokens": 510}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
        ({"sampling_params": {"n": 99}}, "sampling_params.n"),
        ({"output_mode": "audio"}, "output_mode"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"sampling_params": {"prompt_embeds": "x"}}, "prompt_embeds"),
        ({"sampling_params": {"trace_decode_token_ids": [5]}}, "trace_decode_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_what_is_wrong_is_named(
    api: OpenAIApi, http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    body = {"token_ids": PROMPT, "sampling_params": {}, **fields}
    response = await http.post(URL, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not api.generator.requests
