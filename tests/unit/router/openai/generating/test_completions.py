"""POST /v1/completions: kinds of prompts, echo, log probabilities, streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.router.openai_api import MAX_MODEL_LEN

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

URL = "/v1/completions"
ANSWER = "Hello runner"


async def complete(http: httpx.AsyncClient, prompt: Any, **fields: Any) -> Any:
    response = await http.post(URL, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def events(http: httpx.AsyncClient, prompt: Any, **fields: Any) -> list[Any]:
    """The stream's chunks; checks that it ends as it should."""
    response = await http.post(URL, json={"prompt": prompt, "stream": True, **fields})
    assert response.status_code == 200, response.text
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def joined(chunks: list[Any], num_choices: int = 1) -> list[str]:
    texts = [""] * num_choices
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


async def test_a_text_is_continued(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await complete(http, "Once upon")
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    [choice] = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == (ANSWER, "stop")
    assert choice["logprobs"] is None
    [request] = api.generator.requests
    assert list(request.prompt_token_ids) == api.tokenizer.encode("Once upon")
    assert request.params.max_tokens == 16
    assert reply["usage"]["prompt_tokens"] == len(request.prompt_token_ids)
    assert reply["timings"]["total_ms"] == 12.5


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["a", "b"], [(67,), (68,)]),
        (["a"], [(67,)]),
    ],
)
async def test_all_kinds_of_prompts(
    api: OpenAIApi, http: httpx.AsyncClient, prompt: Any, expected: list[tuple[int, ...]]
) -> None:
    reply = await complete(http, prompt)
    assert sorted(r.prompt_token_ids for r in api.generator.requests) == expected
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
    assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))


async def test_choices_of_several_prompts_follow_the_prompts(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.speaker._texts = ("first", "second one")
    reply = await complete(http, ["a", "b"], n=2)
    expected = ["first", "second one"] * 2
    assert [choice["text"] for choice in reply["choices"]] == expected
    assert joined(await events(http, ["a", "b"], n=2), 4) == expected
    ids = [request.request_id for request in api.generator.requests]
    assert len(set(ids)) == 4
    assert ids[0].endswith("-0")
    assert ids[1].endswith("-1")


async def test_a_stream_has_one_chunk_per_piece(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    chunks = await events(http, "a", stream_options={"include_usage": True})
    assert len(chunks) == len(api.tokenizer.encode(ANSWER)) + 1
    assert joined(chunks) == [ANSWER]
    assert chunks[-1]["usage"]["completion_tokens"] == len(chunks) - 1
    assert "timings" in chunks[-1]


async def test_logprobs_are_parallel_lists(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await complete(http, "a", logprobs=2)
    logprobs = reply["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == ANSWER
    assert logprobs["token_logprobs"] == [-1.0] * len(logprobs["tokens"])
    assert [len(top) for top in logprobs["top_logprobs"]] == [2] * len(logprobs["tokens"])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert ANSWER.startswith(token, offset)
    streamed: dict[str, list[Any]] = {name: [] for name in logprobs}
    for chunk in await events(http, "a", logprobs=2):
        for name, values in chunk["choices"][0]["logprobs"].items():
            streamed[name] += values
    assert streamed == logprobs


@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_puts_the_prompt_in_front(
    api: OpenAIApi, http: httpx.AsyncClient, as_ids: bool
) -> None:
    text = "Once upon"
    prompt = api.tokenizer.encode(text) if as_ids else text
    reply = await complete(http, prompt, echo=True, n=2)
    assert [choice["text"] for choice in reply["choices"]] == [text + ANSWER] * 2
    assert joined(await events(http, prompt, echo=True, n=2), 2) == [text + ANSWER] * 2


async def test_echo_with_logprobs_covers_the_prompt(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    num_prompt = len(api.tokenizer.encode("Once upon"))
    reply = await complete(http, "Once upon", echo=True, logprobs=1, n=2)
    for choice in reply["choices"]:
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["token_logprobs"][:2] == [None, -1.0]
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["text_offset"][num_prompt] == len("Once upon")
    assert api.generator.requests[0].params.prompt_logprobs == 1
    chunks = await events(http, "Once upon", echo=True, logprobs=1)
    assert len(chunks[0]["choices"][0]["logprobs"]["tokens"]) == num_prompt + 1
    assert len(chunks[1]["choices"][0]["logprobs"]["tokens"]) == 1


async def test_the_prompt_alone_costs_no_answer_tokens(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    fields = {"echo": True, "max_tokens": 0, "logprobs": 1}
    reply = await complete(http, "Once upon", **fields)
    [choice] = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once upon", "length")
    assert "".join(choice["logprobs"]["tokens"]) == "Once upon"
    assert reply["usage"]["completion_tokens"] == 0
    assert api.generator.requests[0].params.max_tokens == 1
    chunks = await events(http, "Once upon", **fields)
    assert joined(chunks) == ["Once upon"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_token_ids_and_prompt_logprobs_come_with_each_choice(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    reply = await complete(http, [[5, 6], [7]], return_token_ids=True, prompt_logprobs=0)
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [[5, 6], [7]]
    assert reply["choices"][0]["token_ids"] == api.tokenizer.encode(ANSWER)
    assert reply["choices"][0]["prompt_logprobs"][0] is None
    assert list(reply["choices"][0]["prompt_logprobs"][1]) == ["6"]
    assert reply["choices"][1]["prompt_logprobs"] == [None]
    chunks = await events(http, [5, 6], return_token_ids=True)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [5, 6]
    assert "prompt_token_ids" not in chunks[1]["choices"][0]


async def test_the_default_length_is_cut_to_the_context(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    await complete(http, [5] * (MAX_MODEL_LEN - 3))
    assert api.generator.requests[0].params.max_tokens == 3
    # Null says nothing, as in vLLM.
    await complete(http, [5], max_tokens=None)
    assert api.generator.requests[1].params.max_tokens == 16


async def test_what_vllms_load_generator_sends_is_accepted(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    fields = {
        "model": "alias",
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    chunks = await events(http, [5, 6, 7], **fields)
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_special_tokens_can_be_left_out(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    await complete(http, "a", add_special_tokens=False, best_of=1, suffix=None)
    assert api.generator.requests[0].prompt_token_ids == (67,)
