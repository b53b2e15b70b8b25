"""POST /v1/chat/completions/batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

URL = "/v1/chat/completions/batch"
ONE = [{"role": "user", "content": "Hi"}]
TWO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Bye"}]


async def test_every_conversation_has_the_answer_that_it_has_alone(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    fields = {"temperature": 0.5, "seed": 3, "logprobs": True, "return_token_ids": True}
    alone = []
    for messages in (ONE, TWO):
        response = await http.post("/v1/chat/completions", json={"messages": messages, **fields})
        alone.append(response.json())
    response = await http.post(URL, json={"messages": [ONE, TWO], **fields})
    assert response.status_code == 200, response.text
    reply = response.json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    for choice, single in zip(reply["choices"], alone, strict=True):
        assert {**choice, "index": 0} == single["choices"][0]
    totals = ("prompt_tokens", "completion_tokens", "total_tokens")
    for name in totals:
        assert reply["usage"][name] == sum(single["usage"][name] for single in alone)
    asked = {r.prompt_token_ids: r.params for r in api.generator.requests[:2]}
    assert {r.prompt_token_ids: r.params for r in api.generator.requests[2:]} == asked


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ONE}, "messages[0]"),
        ({"messages": [ONE, []]}, "messages[1]"),
        ({"messages": [ONE] * 5}, "messages"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_is_wrong_is_named(
    api: OpenAIApi, http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(URL, json={"messages": [ONE, TWO], **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not api.generator.requests
