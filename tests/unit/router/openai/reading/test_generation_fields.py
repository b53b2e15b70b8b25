"""`best_of`, beam search, processors' arguments: what the pipeline is asked, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shared.request.beam_search import BeamOptions
from tests.fakes.clients.error_words import code_of
from tests.fakes.router.openai_api import LIMITS, OpenAIApi

if TYPE_CHECKING:
    from shared.generation.params import GenerationParams

PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "a"},
}


@pytest.fixture(params=sorted(PROMPTS))
def url(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def asked(
    api: OpenAIApi, http: httpx.AsyncClient, url: str, **fields: Any
) -> GenerationParams:
    response = await http.post(url, json={**PROMPTS[url], **fields})
    assert response.status_code == 200, response.text
    return api.generator.requests[-1].params


async def test_beams_are_as_many_as_best_of_or_n(
    api: OpenAIApi, http: httpx.AsyncClient, url: str
) -> None:
    params = await asked(api, http, url, use_beam_search=True, n=2, temperature=0.5)
    assert (params.n, params.beams) == (2, BeamOptions(width=2))
    params = await asked(
        api, http, url, use_beam_search=True, best_of=4, length_penalty=0, early_stopping="never"
    )
    options = BeamOptions(width=4, length_penalty=0.0, early_stopping="never")
    assert (params.n, params.best_of, params.beams) == (1, None, options)
    params = await asked(api, http, url, use_beam_search=False, length_penalty=2, stop="x")
    assert params.beams is None


async def test_best_of_asks_for_more_and_gives_n(
    api: OpenAIApi, http: httpx.AsyncClient, url: str
) -> None:
    response = await http.post(url, json={**PROMPTS[url], "n": 2, "best_of": 5})
    reply = response.json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    params = api.generator.requests[-1].params
    assert (params.n, params.logprobs) == (5, 0)
    same = await asked(api, http, url, n=2, best_of=2)
    assert (same.n, same.best_of, same.logprobs) == (2, None, None)
    # A stream may say what makes no difference.
    streamed = await http.post(url, json={**PROMPTS[url], "best_of": 1, "stream": True})
    assert streamed.status_code == 200


async def test_arguments_for_processors_have_two_names(
    api: OpenAIApi, http: httpx.AsyncClient, url: str
) -> None:
    args = {"a": True, "b": [1, 0.5, "x"], "c": -(2**63), "d": ""}
    for name in ("vllm_xargs", "extra_args"):
        params = await asked(api, http, url, **{name: args})
        assert params.extra_args == {**args, "b": (1, 0.5, "x")}
    assert (await asked(api, http, url)).extra_args == {}


async def test_the_document_has_the_fields(http: httpx.AsyncClient) -> None:
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    fields = {"best_of", "use_beam_search", "length_penalty", "early_stopping", "vllm_xargs"}
    fields |= {"extra_args", "echo", "user", "priority", "seed", "n", "logprobs"}
    for name, more in (
        ("ChatBody", {"top_logprobs", "max_completion_tokens"}),
        ("CompletionBody", set()),
    ):
        assert schemas[name]["properties"].keys() >= fields | more
    arguments = schemas["ChatBody"]["properties"]["vllm_xargs"]
    assert arguments["maxProperties"] == 32


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
        ({"best_of": 0}, "best_of", "invalid_value"),
        ({"best_of": True}, "best_of", "invalid_type"),
        ({"best_of": LIMITS.max_n + 1}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "unsupported_parameter"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search", "unsupported_parameter"),
        ({"use_beam_search": True, "n": 2, "best_of": 1}, "best_of", "invalid_value"),
        ({"use_beam_search": True, "stop": "a"}, "stop", "invalid_value"),
        ({"use_beam_search": True, "logit_bias": {"3": 1}}, "logit_bias", "invalid_value"),
        ({"use_beam_search": True, "length_penalty": 1e9}, "length_penalty", "invalid_value"),
        ({"early_stopping": "always"}, "early_stopping", "invalid_value"),
        ({"logits_processors": ["os:abort"]}, "logits_processors", "unsupported_parameter"),
        ({"vllm_xargs": [1]}, "vllm_xargs", "invalid_value"),
        ({"vllm_xargs": {"a": {"b": 1}}}, "vllm_xargs.a", "invalid_value"),
        ({"extra_args": {"a": [1, [2]]}}, "extra_args.a[1]", "invalid_value"),
        ({"extra_args": {"a": 2**63}}, "extra_args.a", "invalid_value"),
        ({"extra_args": {"a": "x" * 5000}}, "extra_args.a", "invalid_value"),
        ({"extra_args": {"x" * 65: 1}}, "extra_args", "invalid_value"),
        ({"extra_args": {str(i): 1 for i in range(33)}}, "extra_args", "invalid_value"),
        ({"vllm_xargs": {}, "extra_args": {}}, "extra_args", "invalid_value"),
    ],
)
async def test_what_cannot_be_done_is_named(
    api: OpenAIApi, http: httpx.AsyncClient, url: str, fields: Any, param: str, code: str
) -> None:
    response = await http.post(url, json={**PROMPTS[url], **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code_of(url, param, code))
    assert param.split(".")[0].split("[")[0] in error["message"]
    assert api.generator.requests == []


async def test_answers_of_all_prompts_are_bounded() -> None:
    api = OpenAIApi(limits=replace(LIMITS, max_answers=8))
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for best_of, status in ((4, 200), (5, 400)):
            body = {"prompt": ["a", "b"], "best_of": best_of}
            response = await http.post("/v1/completions", json=body)
            assert response.status_code == status
