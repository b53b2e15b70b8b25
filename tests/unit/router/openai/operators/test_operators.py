"""vLLM's endpoints for operators, and SageMaker's door."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.config import RouterConfig
from services.router.openai.auth import OPERATOR_PATHS
from services.router.operated import settings_without_secrets
from shared.config import load_config

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

CHAT = {"model": "alias", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PROMPT = {"model": "alias", "prompt": "Hello", "max_tokens": 4}


async def test_load_is_the_number_of_requests(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    api.cluster.load = 3
    assert (await http.get("/load")).json() == {"server_load": 3}


@pytest.mark.parametrize("could", [True, False])
async def test_a_reset_says_whether_all_workers_could(
    api: OpenAIApi, http: httpx.AsyncClient, could: bool
) -> None:
    api.cluster.can_reset = could
    response = await http.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"success": could})
    assert api.cluster.num_resets == 1


async def test_running_requests_are_not_reset(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    response = await http.post("/reset_prefix_cache?reset_running_requests=true")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reset_running_requests"
    assert api.cluster.num_resets == 0


async def test_the_tokenizer_and_the_server_describe_themselves(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.tokenizer.config["tokenizer_class"] = "PreTrainedTokenizerFast"
    info = (await http.get("/tokenizer_info")).json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (await http.get("/server_info")).json() == {"version": "1.2.3", "workers": []}


@pytest.mark.parametrize(
    ("body", "kind"), [(CHAT, "chat.completion"), (PROMPT, "text_completion"), ({}, None)]
)
async def test_invocations_take_either_body(
    http: httpx.AsyncClient, body: dict[str, object], kind: str | None
) -> None:
    response = await http.post("/invocations", json=body)
    assert response.json().get("object") == kind
    assert response.status_code == (400 if kind is None else 200)


def test_what_changes_something_needs_an_operator() -> None:
    assert {"/load", "/server_info", "/reset_prefix_cache"} <= OPERATOR_PATHS


def test_settings_are_shown_without_secrets() -> None:
    words = ["--model", "m", "--hf-token", "hf_secret", "--redis-url", "redis://:pw@h/0"]
    config = load_config(RouterConfig, words, prog="test", environ={})
    shown = settings_without_secrets(config)
    assert (shown["model"], shown["hf_token"], shown["redis_url"]) == ("m", "hidden", "hidden")
    assert shown["max_queued_requests"] == config.max_queued_requests
    assert "secret" not in str(shown)
    assert "pw" not in str(shown)
