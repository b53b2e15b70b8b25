"""Fields for the chat template, on every API: what the prompt's tokens say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from httpx import ASGITransport, AsyncClient

from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    import httpx

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.reasoning is defined %}[{{ message.reasoning }}]{% endif %}"
    "{% if message.reasoning_content is defined %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }};{% endfor %}effort={{ reasoning_effort | default('unset') }}"
)
HELLO = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": HELLO},
    "/v1/responses/input_tokens": {"input": HELLO},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"messages": HELLO},
}
#: Where each API has the effort.
EFFORTS: dict[str, Any] = {
    "/v1/chat/completions": lambda effort: {"reasoning_effort": effort},
    "/v1/responses": lambda effort: {"reasoning": {"effort": effort}},
    "/v1/responses/input_tokens": lambda effort: {"reasoning": {"effort": effort}},
    "/v1/messages": lambda effort: {"output_config": {"effort": effort}},
    "/v1/messages/count_tokens": lambda effort: {"output_config": {"effort": effort}},
    "/tokenize": lambda effort: {"reasoning_effort": effort},
}
GENERATING = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


@pytest.fixture
def api() -> OpenAIApi:
    return OpenAIApi(chat_template=TEMPLATE)


class Prompts:
    """What prompts the API makes of bodies."""

    def __init__(self, api: OpenAIApi, http: httpx.AsyncClient) -> None:
        self._api = api
        self._http = http

    async def text(self, url: str, **fields: Any) -> str:
        """The prompt as the pipeline gets it."""
        response = await self._http.post(url, json={**BODIES[url], **fields})
        assert response.status_code == 200, response.text
        ids = self._api.generator.requests[-1].prompt_token_ids
        return self._api.tokenizer.decode(ids, skip_special_tokens=False)

    async def num_tokens(self, url: str, **fields: Any) -> int:
        """How long the prompt is, as an endpoint that only counts says."""
        reply = (await self._http.post(url, json={**BODIES[url], **fields})).json()
        return int(reply["count"] if url == "/tokenize" else reply["input_tokens"])


@pytest.fixture
def prompts(api: OpenAIApi, http: httpx.AsyncClient) -> Prompts:
    return Prompts(api, http)


@pytest.mark.parametrize("url", GENERATING)
async def test_the_effort_reaches_the_template(prompts: Prompts, url: str) -> None:
    assert (await prompts.text(url)).endswith("effort=unset")
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        assert (await prompts.text(url, **EFFORTS[url](effort))).endswith(f"effort={effort}")


@pytest.mark.parametrize("url", GENERATING)
async def test_the_effort_counts_before_the_templates_general_variables(
    prompts: Prompts, url: str
) -> None:
    variables = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert (await prompts.text(url, **variables)).endswith("effort=low")
    both = await prompts.text(url, **variables, **EFFORTS[url]("high"))
    assert both.endswith("effort=high")
    unset = await prompts.text(url, **variables, **EFFORTS[url](None))
    assert unset.endswith("effort=low")


@pytest.mark.parametrize("url", sorted(set(BODIES) - set(GENERATING)))
async def test_what_counts_tokens_counts_the_efforts(prompts: Prompts, url: str) -> None:
    short = await prompts.num_tokens(url, **EFFORTS[url]("low"))
    long = await prompts.num_tokens(url, **EFFORTS[url]("minimal"))
    assert short < long


@pytest.mark.parametrize("url", sorted(BODIES))
async def test_an_effort_that_there_is_not_is_named(http: httpx.AsyncClient, url: str) -> None:
    response = await http.post(url, json={**BODIES[url], **EFFORTS[url]("huge")})
    assert response.status_code == 400
    assert "effort" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("url", "history"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "reasoning": "Hm"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "reasoning_content": "Hm"}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "reasoning": "Hm", "reasoning_content": "old"}]},
        ),
        (
            "/v1/responses",
            {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}]},
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}],
                    }
                ]
            },
        ),
    ],
)
async def test_reasoning_of_earlier_turns_has_both_names_in_the_template(
    prompts: Prompts, url: str, history: dict[str, Any]
) -> None:
    [field] = history
    [turn] = history[field]
    if url == "/v1/chat/completions":
        turn["content"] = "Yes."
    text = await prompts.text(url, **{field: [turn, *HELLO]})
    assert text.startswith("assistant:[Hm](Hm)")


async def test_reasoning_that_is_no_text_is_named(http: httpx.AsyncClient) -> None:
    turn = {"role": "assistant", "content": "", "reasoning": 3}
    response = await http.post("/v1/chat/completions", json={"messages": [turn]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].reasoning"


async def test_a_template_of_a_request_is_refused_unless_it_is_trusted(
    http: httpx.AsyncClient,
) -> None:
    mine = {"chat_template": "{{ messages[0].content }}{{ bos_token | default('-') }}!"}
    for url in ("/v1/chat/completions", "/tokenize"):
        response = await http.post(url, json={**BODIES[url], **mine})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in error["message"]
    api = OpenAIApi(chat_template=TEMPLATE, trusts_templates=True)
    transport = ASGITransport(app=api.app)
    async with AsyncClient(transport=transport, base_url="http://test") as trusted:
        prompts = Prompts(api, trusted)
        assert await prompts.text("/v1/chat/completions", **mine) == "Hi-!"
        assert (await prompts.text("/v1/chat/completions")).startswith("user:Hi;"), (
            "for one request"
        )
        ids = (await trusted.post("/tokenize", json={**BODIES["/tokenize"], **mine})).json()
        assert api.tokenizer.decode(ids["tokens"]) == "Hi-!"
        for bad in (
            "{% for %}",
            "{{ ''.__class__.__mro__ }}",
            "{% for i in range(10**9) %}{% endfor %}",
        ):
            body = {**BODIES["/v1/chat/completions"], "chat_template": bad}
            response = await trusted.post("/v1/chat/completions", json=body)
            assert response.status_code == 400, bad
