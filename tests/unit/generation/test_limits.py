"""Every limit refuses what is over it, names the parameter and says the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.router.config import RouterConfig
from shared.config import load_config
from shared.errors import ConfigError
from shared.generation.limits import RequestLimits
from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMITS = RequestLimits(
    max_body_bytes=20_000,
    max_json_depth=8,
    max_prompt_chars=1000,
    max_prompt_tokens=50,
    max_prompts=3,
    max_answers=4,
    max_messages=3,
    max_output_tokens=30,
    max_n=3,
    max_stop_strings=2,
    max_stop_chars=10,
    max_stop_token_ids=2,
    max_logit_bias=2,
    max_bad_words=2,
    max_logprobs=5,
)
NESTED: Any = 1
for _ in range(9):
    NESTED = [NESTED]
MESSAGE = {"role": "user", "content": "hi"}
#: Endpoint, fields, status, param, and a number that the message must hold.
TOO_MUCH = [
    ("completions", {"prompt": "a", "user": "u" * 30_000}, 413, None, 20_000),
    ("completions", {"prompt": "a", "x": NESTED}, 400, None, 8),
    ("completions", {"prompt": "a" * 1001}, 413, "prompt", 1000),
    ("completions", {"prompt": ["a" * 501] * 2}, 413, "prompt", 1000),
    ("completions", {"prompt": [5] * 51}, 400, "prompt", 50),
    ("completions", {"prompt": ["a"] * 4}, 400, "prompt", 3),
    ("completions", {"prompt": ["a"] * 3, "n": 2}, 400, "n", 4),
    ("completions", {"prompt": "a", "max_tokens": 31}, 400, "max_tokens", 30),
    ("completions", {"prompt": "a", "n": 4}, 400, "n", 3),
    ("completions", {"prompt": "a", "stop": ["a"] * 3}, 400, "stop", 2),
    ("completions", {"prompt": "a", "stop": "a" * 11}, 400, "stop", 10),
    ("completions", {"prompt": "a", "stop_token_ids": [5] * 3}, 400, "stop_token_ids", 2),
    ("completions", {"prompt": "a", "logit_bias": dict.fromkeys("567", 1)}, 400, "logit_bias", 2),
    ("completions", {"prompt": "a", "bad_words": ["a"] * 3}, 400, "bad_words", 2),
    ("completions", {"prompt": "a", "bad_words": ["a" * 11]}, 400, "bad_words", 10),
    ("completions", {"prompt": "a", "logprobs": 6}, 400, "logprobs", 5),
    ("completions", {"prompt": "a", "prompt_logprobs": 6}, 400, "prompt_logprobs", 5),
    ("chat/completions", {"messages": [MESSAGE] * 4}, 400, "messages", 3),
    (
        "chat/completions",
        {"messages": [{**MESSAGE, "content": "a" * 1001}]},
        413,
        "messages",
        1000,
    ),
]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=OpenAIApi(limits=LIMITS).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.parametrize(("endpoint", "body", "status", "param", "limit"), TOO_MUCH)
async def test_a_request_over_a_limit_is_refused(
    http: httpx.AsyncClient,
    endpoint: str,
    body: dict[str, Any],
    status: int,
    param: str | None,
    limit: int,
) -> None:
    response = await http.post(f"/v1/{endpoint}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert str(limit) in error["message"]


async def test_a_request_at_every_limit_is_answered(http: httpx.AsyncClient) -> None:
    body = {
        "prompt": [[5] * 50, [6]],
        "n": 2,
        "max_tokens": 30,
        "stop": ["a" * 10, "b"],
        "stop_token_ids": [5, 6],
        "logit_bias": {"5": 1, "6": 1},
        "bad_words": ["a" * 10, "b"],
        "logprobs": 5,
        "x": NESTED[0][0],
    }
    assert (await http.post("/v1/completions", json=body)).status_code == 200


async def test_brackets_in_texts_are_not_nested(http: httpx.AsyncClient) -> None:
    body = {"prompt": '[[{{"' * 20 + "\\" * 3, "max_tokens": 1}
    response = await http.post("/v1/completions", json=body)
    assert response.json().get("error", {}).get("code") != "invalid_json"


async def test_an_announced_length_of_any_digits_is_refused(http: httpx.AsyncClient) -> None:
    """Python reads no number of more than some thousands of digits."""
    request = http.build_request(
        "POST", "/v1/completions", content=b"{}", headers={"content-type": "application/json"}
    )
    request.headers["content-length"] = "9" * 5000
    assert (await http.send(request)).status_code == 413


def test_limits_are_settings() -> None:
    argv = ["--model", ".", "--max-n", "7", "--max-output-tokens", "9"]
    config = load_config(RouterConfig, argv, prog="router", environ={})
    assert (config.limits.max_n, config.limits.max_output_tokens) == (7, 9)
    for bad in (["--max-n", "0"], ["--max-logprobs", "-2"]):
        with pytest.raises(ConfigError, match=bad[0]):
            load_config(RouterConfig, ["--model", ".", *bad], prog="router", environ={})
