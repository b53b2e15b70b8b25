"""Whatever a client sends: an answer or a refusal in OpenAI's shape, never a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.anthropic.schema import CountTokensBody, MessagesBody
from services.router.openai.generating.chat_batch import ChatBatchBody
from services.router.openai.generating.scoring import ScoringBody
from services.router.openai.responses_api.schema import ResponsesBody
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.schema.tokenize import (
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from services.router.openai.schema.unsupported import REFUSED
from services.router.openai.tokens_api.derender_schema import (
    DerenderChatBody,
    DerenderCompletionBody,
)
from services.router.openai.tokens_api.render import RenderChatBody
from services.router.openai.tokens_api.schema import GenerateBody
from tests.accounting.effort import examples
from tests.fakes.clients.error_words import CLIENT_ERRORS
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    import pydantic

API = OpenAIApi("ok")
ENDPOINTS: dict[str, tuple[type[pydantic.BaseModel], ...]] = {
    "/v1/chat/completions": (ChatBody,),
    "/v1/completions": (CompletionBody,),
    "/v1/responses": (ResponsesBody,),
    "/v1/messages": (MessagesBody,),
    "/v1/messages/count_tokens": (CountTokensBody,),
    "/tokenize": (TokenizeTextBody, TokenizeChatBody),
    "/detokenize": (DetokenizeBody,),
    "/inference/v1/generate": (GenerateBody,),
    "/v1/chat/completions/render": (RenderChatBody,),
    "/v1/chat/completions/derender": (DerenderChatBody,),
    "/v1/completions/derender": (DerenderCompletionBody,),
    "/v1/chat/completions/batch": (ChatBatchBody,),
    "/generative_scoring": (ScoringBody,),
}
_TOKENS: dict[str, Any] = {"choices": [{"index": 0, "token_ids": [5, 6]}]}
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [{"messages": [{"role": "user", "content": "Hi"}]}],
    "/v1/completions": [{"prompt": "a"}, {"prompt": [5, 6]}, {"prompt": ["a", "b"]}],
    "/v1/responses": [{"input": "Hi"}, {"input": [{"role": "user", "content": "Hi"}]}],
    "/v1/messages": [{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": "Hi"}]}],
    "/tokenize": [{"prompt": "a"}, {"messages": [{"role": "user", "content": "Hi"}]}],
    "/detokenize": [{"tokens": [5, 6]}],
    "/inference/v1/generate": [{"token_ids": [5, 6], "sampling_params": {"logprobs": 1}}],
    "/v1/chat/completions/render": [{"messages": [{"role": "user", "content": "Hi"}]}],
    "/v1/chat/completions/derender": [{"generate_response": _TOKENS}],
    "/v1/completions/derender": [{"generate_responses": [_TOKENS, _TOKENS]}],
    "/v1/chat/completions/batch": [{"messages": [[{"role": "user", "content": "Hi"}]]}],
    "/generative_scoring": [{"query": "a", "items": ["b"], "label_token_ids": [5]}],
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 10),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["user", "assistant", "text", "none", "auto", "alias", "json_object"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.text(max_size=8),
                st.sampled_from(["role", "content", "type", "text", "tool_calls", "function"]),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


def field_names(endpoint: str) -> list[str]:
    names = {name for schema in ENDPOINTS[endpoint] for name in schema.model_fields}
    others = {"tools", "tool_choice", "best_of", "modalities", "unknown"}
    return sorted(names | others | set(REFUSED))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body with some fields replaced, or anything at all."""
    endpoint = draw(st.sampled_from(sorted(ENDPOINTS)))
    if draw(st.integers(0, 9)) == 0:
        return endpoint, draw(st.one_of(st.binary(max_size=50), values.map(encode)))
    base = draw(st.sampled_from(VALID[endpoint]))
    names = st.sampled_from(field_names(endpoint))
    changes = draw(st.dictionaries(names, values, max_size=3))
    return endpoint, encode({**base, **changes})


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


async def post(endpoint: str, body: bytes) -> httpx.Response:
    transport = httpx.ASGITransport(app=API.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(
            endpoint, content=body, headers={"content-type": "application/json"}
        )


@settings(max_examples=examples(120, 1200))
@given(bodies())
def test_random_bodies_never_break_the_server(sent: tuple[str, bytes]) -> None:
    # The transport raises what the application raises, so a bug shows its own trace.
    response = asyncio.run(post(*sent))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] in (*CLIENT_ERRORS, "not_found_error")
        assert "Traceback" not in response.text
    assert API.generator.num_open == 0


@given(st.text(max_size=30), st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"]))
def test_random_routes_never_break_the_server(path: str, method: str) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=API.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, "/" + quote(path))

    assert asyncio.run(ask()).status_code in (200, 400, 404, 405)
