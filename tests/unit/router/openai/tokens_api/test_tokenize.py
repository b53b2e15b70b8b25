"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.router.openai_api import MAX_MODEL_LEN

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

TEXT = "Once upon a time, 你好"


async def post(http: httpx.AsyncClient, url: str, **body: Any) -> Any:
    response = await http.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_text_goes_there_and_back(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    reply = await post(http, "/tokenize", prompt=TEXT, model="alias")
    assert reply["tokens"] == api.tokenizer.encode(TEXT)
    assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), MAX_MODEL_LEN)
    assert reply["token_strs"] is None
    assert await post(http, "/detokenize", tokens=reply["tokens"]) == {"prompt": TEXT}


async def test_tokens_can_be_shown(http: httpx.AsyncClient) -> None:
    reply = await post(http, "/tokenize", prompt="a time", return_token_strs=True)
    assert "".join(reply["token_strs"]) == "aĠtime"


async def test_offsets_are_characters_of_the_text(http: httpx.AsyncClient) -> None:
    reply = await post(http, "/tokenize", prompt=TEXT, return_offsets=True)
    assert len(reply["offsets"]) == reply["count"]
    assert reply["offsets"][0][0] == 0
    assert reply["offsets"][-1][1] == len(TEXT)


async def test_a_conversation_becomes_what_chat_would_send(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = await post(http, "/tokenize", messages=messages)
    await post(http, "/v1/chat/completions", messages=messages)
    assert reply["tokens"] == list(api.generator.requests[0].prompt_token_ids)
    without = await post(http, "/tokenize", messages=messages, add_generation_prompt=False)
    assert without["count"] < reply["count"]
    text = await post(http, "/detokenize", tokens=without["tokens"])
    assert text == {"prompt": "<|im_start|>user\nHi<|im_end|>\n"}


async def test_nothing_has_no_tokens(http: httpx.AsyncClient) -> None:
    assert (await post(http, "/tokenize", prompt=""))["tokens"] == []
    assert await post(http, "/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": 5}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ],
)
async def test_wrong_fields_are_named(
    http: httpx.AsyncClient, url: str, body: Any, param: str
) -> None:
    response = await http.post(url, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
