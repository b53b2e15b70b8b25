"""The same fields over HTTP and by the SDK over gRPC: one request, one refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton_client import AsyncBaton
from baton_client.errors import BatonError
from tests.fakes.router.grpc_door import served
from tests.fakes.router.openai_api import OpenAIApi
from tests.fakes.router.tool_api import tool_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from baton_client.types import Generation
    from services.router.request.generation import GenerationRequest

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
BEAMS = {"use_beam_search": True, "best_of": 3, "n": 2, "early_stopping": "never"}
SAME: list[dict[str, Any]] = [
    {"best_of": 3, "n": 2},
    {"best_of": 2, "n": 2},
    BEAMS,
    BEAMS | {"length_penalty": 0.5, "early_stopping": True},
    {"logprobs": 2, "prompt_logprobs": 1},
    {"logprobs": 0, "logprob_token_ids": [5, 7]},
    {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
    {"stream_interval": 5},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"thinking_token_budget": 6},
    {"thinking_token_budget": -1},
    {"truncate_prompt_tokens": 3},
    {"truncate_prompt_tokens": 4, "truncation_side": "right"},
    {"truncate_prompt_tokens": -1, "truncation_side": "left"},
]
REFUSED: list[dict[str, Any]] = [
    {"best_of": 1, "n": 2},
    BEAMS | {"logit_bias": {5: 1.0}},
    BEAMS | {"thinking_token_budget": 3},
    {"logprobs": 21},
    {"logprobs": -1},
    {"prompt_logprobs": 21},
    {"logprob_token_ids": [5]},
    {"repetition_detection": {"max_pattern_size": 4}},
    {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}},
    {"truncate_prompt_tokens": 10**6},
]


@pytest.fixture
def api() -> OpenAIApi:
    return tool_api()


@pytest.fixture
async def baton(api: OpenAIApi) -> AsyncIterator[AsyncBaton]:
    async with served(api) as address, AsyncBaton(address) as baton:
        yield baton


@pytest.fixture
async def http(api: OpenAIApi) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


def body_of(fields: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The body with the same fields; a chat has its number of alternatives elsewhere."""
    body = {"messages": MESSAGES} if is_chat else {"prompt": "Hi there"}
    body |= {name: value for name, value in fields.items() if name != "logprobs"}
    if "logprobs" in fields:
        number = fields["logprobs"]
        body |= {"logprobs": True, "top_logprobs": number} if is_chat else {"logprobs": number}
    if "logit_bias" in body:
        body["logit_bias"] = {str(key): value for key, value in body["logit_bias"].items()}
    return body


async def ask(baton: AsyncBaton, fields: dict[str, Any], *, is_chat: bool) -> Generation:
    if is_chat:
        return await baton.chat(MESSAGES, **fields)
    # Completions have a default length over HTTP.
    return await baton.generate("Hi there", max_tokens=16, **fields)


def told(request: GenerationRequest) -> dict[str, Any]:
    """What both doors must agree about."""
    params = request.params
    names = set(type(params).__slots__) - {"seed"}
    return {name: getattr(params, name) for name in names} | {"prompt": request.prompt_token_ids}


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("fields", SAME, ids=str)
async def test_the_same_fields_are_the_same_request(
    api: OpenAIApi,
    baton: AsyncBaton,
    http: httpx.AsyncClient,
    fields: dict[str, Any],
    *,
    is_chat: bool,
) -> None:
    url = "/v1/chat/completions" if is_chat else "/v1/completions"
    response = await http.post(url, json=body_of(fields, is_chat=is_chat))
    assert response.status_code == 200, response.text
    answer = await ask(baton, fields, is_chat=is_chat)
    assert len(answer.answers) == fields.get("n", 1)
    over_http, over_grpc = api.generator.requests
    assert told(over_grpc) == told(over_http)


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("fields", REFUSED, ids=str)
async def test_the_same_fields_are_refused_in_the_same_words(
    api: OpenAIApi,
    baton: AsyncBaton,
    http: httpx.AsyncClient,
    fields: dict[str, Any],
    *,
    is_chat: bool,
) -> None:
    url = "/v1/chat/completions" if is_chat else "/v1/completions"
    response = await http.post(url, json=body_of(fields, is_chat=is_chat))
    error = response.json()["error"]
    assert response.status_code == 400
    with pytest.raises(BatonError) as caught:
        await ask(baton, fields, is_chat=is_chat)
    message = error["message"].replace("top_logprobs", "logprobs")
    assert message in str(caught.value)
    assert caught.value.param == error["param"].replace("top_logprobs", "logprobs")
    assert not api.generator.requests


async def test_an_effort_is_the_templates_variable() -> None:
    api = OpenAIApi()
    template = "{{ messages[0].content }} {{ reasoning_effort }} {{ a }}"
    async with served(api, template=template) as address, AsyncBaton(address) as baton:
        kwargs = {"a": 1, "reasoning_effort": "high"}
        await baton.chat(MESSAGES, reasoning_effort="low", chat_template_kwargs=kwargs)
        with pytest.raises(BatonError, match="reasoning_effort must be one of none, minimal"):
            await baton.chat(MESSAGES, reasoning_effort="enormous")
    [request] = api.generator.requests
    assert api.tokenizer.decode(request.prompt_token_ids) == "Hi low 1"
