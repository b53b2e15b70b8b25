"""POST /v1/chat/completions: what reaches the pipeline, and what the client reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.router.openai_api import MODEL

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]


async def chat(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post(URL, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def events(http: httpx.AsyncClient, **fields: Any) -> list[Any]:
    """The stream's chunks; checks that it ends as it should."""
    response = await http.post(URL, json={"messages": HELLO, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_an_answer_is_whole(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await chat(http, model="alias")
    assert reply["id"].startswith("chatcmpl-")
    assert (reply["object"], reply["model"]) == ("chat.completion", MODEL)
    [choice] = reply["choices"]
    message = {"role": "assistant", "content": "Hello runner", "refusal": None, "reasoning": None}
    assert choice["message"] == message
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 0)
    assert choice["logprobs"] is None
    prompt = api.tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert list(api.generator.requests[0].prompt_token_ids) == prompt
    assert api.generator.requests[0].model == MODEL
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    assert usage["total_tokens"] == len(prompt) + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
    assert reply["timings"]["total_ms"] == 12.5
    assert reply["timings"]["connector"] == "shm"


async def test_a_stream_has_one_chunk_per_piece(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    chunks = await events(http)
    num_tokens = len(api.tokenizer.encode("Hello runner"))
    assert len(chunks) == num_tokens
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (num_tokens - 1)
    assert "".join(delta["content"] for delta in deltas) == "Hello runner"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (num_tokens - 1) + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_and_timings_end_a_stream_when_asked_for(http: httpx.AsyncClient) -> None:
    chunks = await events(http, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(chunks) - 1
    assert "cached_tokens" in chunks[-1]["usage"]["prompt_tokens_details"]
    assert chunks[-1]["timings"]["total_ms"] == 12.5
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_running_usage_counts_up(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(http, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [*range(1, len(chunks)), len(chunks) - 1]


async def test_several_answers_keep_apart(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.speaker._texts = ("one two", "three four five")
    reply = await chat(http, n=2)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == ["one two", "three four five"]
    streamed = ["", ""]
    roles = [0, 0]
    for chunk in await events(http, n=2):
        [choice] = chunk["choices"]
        streamed[choice["index"]] += choice["delta"]["content"]
        roles[choice["index"]] += "role" in choice["delta"]
    assert streamed == texts
    assert roles == [1, 1]


async def test_logprobs_have_openais_shape(http: httpx.AsyncClient) -> None:
    reply = await chat(http, logprobs=True, top_logprobs=2)
    content = reply["choices"][0]["logprobs"]["content"]
    assert "".join(bytes(p["bytes"]).decode() for p in content) == "Hello runner"
    assert all(position["logprob"] == -1.0 for position in content)
    assert [alternative["logprob"] for alternative in content[0]["top_logprobs"]] == [-1.0, -2.0]
    streamed = [c["choices"][0]["logprobs"]["content"] for c in await events(http, logprobs=True)]
    assert [p["token"] for [p] in streamed] == [p["token"] for p in content]
    assert streamed[0][0]["top_logprobs"] == []


async def test_tokens_can_be_shown_as_ids(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    ids = api.tokenizer.encode("Hello runner")
    fields = {"logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True}
    reply = await chat(http, **fields)
    tokens = [p["token"] for p in reply["choices"][0]["logprobs"]["content"]]
    assert tokens == [f"token_id:{i}" for i in ids]
    assert reply["choices"][0]["token_ids"] == ids
    assert reply["prompt_token_ids"] == list(api.generator.requests[0].prompt_token_ids)
    chunks = await events(http, **fields)
    assert [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]] == ids
    assert chunks[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


async def test_the_prompt_is_shown_once(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await chat(http, return_prompt_text=True)
    prompt = api.tokenizer.decode(api.generator.requests[0].prompt_token_ids, False)
    assert reply["prompt_text"] == prompt
    chunks = await events(http, return_prompt_text=True)
    assert [chunk.get("prompt_text") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)


async def test_too_many_logprobs_are_refused_by_the_chats_name_and_the_flags(
    http: httpx.AsyncClient,
) -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 21}
    error = (await http.post(URL, json=body)).json()["error"]
    assert error["message"].startswith("top_logprobs must be at least 0 and at most 20, not 21")
    assert error["message"].endswith("see --max-logprobs")


async def test_prompt_logprobs_are_keyed_by_token(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await chat(http, prompt_logprobs=1)
    first, *others = reply["prompt_logprobs"]
    assert first is None
    prompt = api.generator.requests[0].prompt_token_ids
    assert [list(position) for position in others] == [[str(i)] for i in prompt[1:]]
    assert others[0][str(prompt[1])]["rank"] == 1


async def test_parameters_reach_the_pipeline(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await chat(
        http,
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0.5,
        top_k=-1,
        seed=-1,
        stop="END",
        logit_bias={"5": -100},
        min_tokens=2,
        ignore_eos=True,
        repetition_penalty=1.1,
        bad_words=["no"],
        allowed_token_ids=[1, 2],
        priority=-3,
        user="somebody",
        unknown_field={"is": "ignored"},
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        logprobs=None,
        stream=None,
    )
    [request] = api.generator.requests
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_k) == (7, 0.5, -1)
    assert params.seed == -1
    assert (params.stop, params.bad_words) == (("END",), ("no",))
    assert params.logit_bias == {5: -100.0}
    assert (params.min_tokens, params.ignore_eos) == (2, True)
    assert (params.repetition_penalty, params.allowed_token_ids) == (1.1, (1, 2))
    assert (params.logprobs, params.n, request.priority) == (None, 1, -3)
    assert request.arrival_s > 0


async def test_unsaid_parameters_stay_unsaid(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await chat(http)
    params = api.generator.requests[0].params
    assert params.max_tokens is None
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (None,) * 4


async def test_parts_of_text_are_joined(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat(http, messages=[{"role": "user", "content": parts}])
    prompt = api.tokenizer.decode(api.generator.requests[0].prompt_token_ids, False)
    assert prompt == "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"


async def test_the_last_message_can_be_continued(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}]
    fields = {"messages": messages, "continue_final_message": True, "echo": True}
    reply = await chat(http, **fields)
    prompt = api.tokenizer.decode(api.generator.requests[0].prompt_token_ids, False)
    assert prompt.endswith("<|im_start|>assistant\nWell,")
    assert reply["choices"][0]["message"]["content"] == "Well,Hello runner"
    chunks = await events(http, **fields)
    assert chunks[0]["choices"][0]["delta"]["content"].startswith("Well,")


async def test_salts_differ_by_tenant_and_by_what_the_client_gives(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    for tenant in ("", "a", "b"):
        for salt in (None, "x", "ax"):
            body = {"messages": HELLO, "cache_salt": salt}
            headers = {"x-test-tenant": tenant}
            assert (await http.post(URL, json=body, headers=headers)).status_code == 200
    salts = [request.cache_salt for request in api.generator.requests]
    assert salts[0] == b""
    assert len(set(salts)) == 9


@pytest.mark.parametrize("long", [False, True])
async def test_long_conversations_are_tokenised_as_short_ones_are(
    api: OpenAIApi, http: httpx.AsyncClient, long: bool
) -> None:
    metadata = {"padding": "x" * 20_000 if long else ""}
    await chat(http, metadata=metadata)
    assert len(api.generator.requests[0].prompt_token_ids) < 40
