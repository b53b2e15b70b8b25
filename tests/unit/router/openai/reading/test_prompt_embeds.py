"""Embeddings in requests over HTTP: what the pipeline gets, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from httpx import ASGITransport, AsyncClient

from services.router.request.embeds_policy import MAX_ROW_BYTES, NO_EMBEDS, EmbedsPolicy
from services.router.request.generation import GenerationRequest
from shared.errors import OverloadedError, PayloadTooLargeError, UnsupportedError
from shared.generation.params import GenerationParams
from shared.request.prompt_embeds import NO_TOKEN, EmbeddingRows, EmbedsDtype, PromptEmbeds
from tests.fakes.model.embeds import as_field
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    import httpx

ROWS = as_field(torch.arange(10.0).view(5, 2))
ALLOWED = EmbedsPolicy(is_allowed=True, max_bytes=1000)
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% if 'twice' in m.content %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.fixture
def api() -> OpenAIApi:
    return OpenAIApi(embeds=ALLOWED, chat_template=TEMPLATE)


async def post(api: OpenAIApi, url: str, **body: Any) -> httpx.Response:
    async with AsyncClient(transport=ASGITransport(app=api.app), base_url="http://x") as http:
        return await http.post(url, json={"max_tokens": 3, **body})


async def complete(api: OpenAIApi, **body: Any) -> httpx.Response:
    return await post(api, "/v1/completions", **body)


@pytest.mark.parametrize("beside", [{}, {"prompt": ""}, {"prompt": None}])
async def test_one_or_several_before_the_other_prompts(
    api: OpenAIApi, beside: dict[str, Any]
) -> None:
    assert (await complete(api, prompt_embeds=ROWS, **beside)).status_code == 200
    assert (await complete(api, prompt_embeds=[ROWS, ROWS], prompt=[[5, 6]])).status_code == 200
    found = [(request.prompt_token_ids, request.embeds) for request in api.generator.requests]
    assert [ids for ids, _ in found] == [(NO_TOKEN,) * 5] * 3 + [(5, 6)]
    assert [embeds is None for _, embeds in found] == [False] * 3 + [True]
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize(
    ("num_tokens", "side", "kept"),
    [(2, None, [6, 7, 8, 9]), (2, "right", [0, 1, 2, 3]), (9, "left", list(range(10)))],
)
async def test_rows_are_cut_off_like_tokens(
    api: OpenAIApi, num_tokens: int, side: str | None, kept: list[int]
) -> None:
    await complete(api, prompt_embeds=ROWS, truncate_prompt_tokens=num_tokens, truncation_side=side)
    [request] = api.generator.requests
    assert request.embeds is not None
    [part] = request.embeds.parts
    assert torch.frombuffer(bytearray(part.rows.data), dtype=torch.float32).tolist() == kept
    assert len(request.prompt_token_ids) == len(kept) // 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_embeds": 5}, "prompt_embeds"),
        ({"prompt_embeds": [ROWS, 5]}, "prompt_embeds"),
        ({"prompt_embeds": "!"}, "prompt_embeds"),
        ({"prompt_embeds": [ROWS, "!"]}, "prompt_embeds[1]"),
        ({"prompt_embeds": ROWS, "echo": True}, "echo"),
        ({"prompt_embeds": ROWS, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_embeds": ROWS, "truncate_prompt_tokens": 0}, "prompt"),
        ({"prompt_embeds": ROWS, "prompt": [-1]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt"),
        ({}, "prompt"),
        ({"prompt_embeds": []}, "prompt"),
    ],
)
async def test_what_is_wrong_is_named(api: OpenAIApi, body: dict[str, Any], param: str) -> None:
    response = await complete(api, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not api.generator.requests


async def test_nothing_is_read_unless_it_is_allowed() -> None:
    api = OpenAIApi()
    for response in (
        await complete(api, prompt_embeds="!"),
        await post(api, "/v1/chat/completions", messages=[message("!")]),
    ):
        assert response.status_code == 400
        assert "--enable-prompt-embeds" in response.json()["error"]["message"]


def message(data: Any, *texts: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": text} for text in texts]
    return {"role": "user", "content": [*parts, {"type": "prompt_embeds", "data": data}]}


async def test_parts_of_a_chat_stand_between_its_texts(api: OpenAIApi) -> None:
    messages = [message(ROWS, "one"), message(ROWS), {"role": "user", "content": "two"}]
    response = await post(api, "/v1/chat/completions", messages=messages, return_prompt_text=True)
    assert response.status_code == 200, response.text
    [request] = api.generator.requests
    one, two = (tuple(api.tokenizer.encode(text, False)) for text in ("one\n", "two"))
    assert request.prompt_token_ids == (*one, *(NO_TOKEN,) * 10, *two)
    assert request.embeds is not None
    request.embeds.check(request.prompt_token_ids)
    assert response.json()["prompt_text"] == "one\ntwo"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([message(5)], "messages[0].content[0].data"),
        ([message("!")], "messages[0].content[0].data"),
        ([message(ROWS, "twice")], "messages"),
    ],
)
async def test_a_wrong_part_is_named(api: OpenAIApi, messages: list[Any], param: str) -> None:
    response = await post(api, "/v1/chat/completions", messages=messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("url", ["/v1/chat/completions/render", "/tokenize"])
async def test_they_have_no_tokens_to_return(api: OpenAIApi, url: str) -> None:
    response = await post(api, url, messages=[message(ROWS)])
    assert response.status_code == 400
    assert "prompt_embeds" in response.json()["error"]["message"]


def asking(num_numbers: int) -> GenerationRequest:
    rows = EmbeddingRows(EmbedsDtype.FLOAT32, 1, bytes(4 * num_numbers))
    embeds = PromptEmbeds.whole(rows)
    return GenerationRequest(
        request_id="a",
        model="m",
        prompt_token_ids=embeds.whole_ids,
        embeds=embeds,
        params=GenerationParams(),
    )


def test_the_rows_of_all_requests_have_a_bound() -> None:
    ALLOWED.check(asking(125), [asking(125)])
    with pytest.raises(OverloadedError, match="504 of 1000 bytes"):
        ALLOWED.check(asking(125), [asking(126)])
    with pytest.raises(PayloadTooLargeError) as error:
        EmbedsPolicy(is_allowed=True, max_bytes=2**40).check(asking(MAX_ROW_BYTES // 4 + 1), [])
    assert error.value.param == "prompt_embeds"
    with pytest.raises(UnsupportedError):
        NO_EMBEDS.check(asking(1), [])
