"""The doors to load and unload adapters, and adapters in the list of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.router.openai.auth import OPERATOR_PATHS
from services.router.openai.operators.adapters import ADAPTER_PATHS, LOAD_PATH, UNLOAD_PATH
from shared.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from tests.fakes.router.openai_api import MODEL

if TYPE_CHECKING:
    import httpx

    from tests.fakes.router.openai_api import OpenAIApi

SQL = {"lora_name": "sql", "lora_path": "/a/sql"}


async def test_a_load_passes_on_what_it_is_told(api: OpenAIApi, http: httpx.AsyncClient) -> None:
    first = await http.post(LOAD_PATH, json=SQL)
    again = await http.post(LOAD_PATH, json={**SQL, "load_inplace": True})
    for response in (first, again):
        assert response.status_code == 200
        assert response.text == "Success: LoRA adapter 'sql' added successfully."
        assert response.headers["content-type"].startswith("text/plain")
    gone = await http.post(UNLOAD_PATH, json={"lora_name": "sql", "lora_int_id": 3})
    assert (gone.status_code, gone.text) == (
        200,
        "Success: LoRA adapter 'sql' removed successfully.",
    )
    assert api.cluster.fleet.told == [
        ("load_adapter", "sql", "/a/sql", False),
        ("load_adapter", "sql", "/a/sql", True),
        ("unload_adapter", "sql"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (LOAD_PATH, {"lora_name": "sql"}, "lora_path", "must be provided"),
        (LOAD_PATH, {"lora_path": "/a"}, "lora_name", "must be provided"),
        (LOAD_PATH, {**SQL, "load_inplace": 1}, "load_inplace", "boolean"),
        (LOAD_PATH, {**SQL, "base_model_name": "m"}, "base_model_name", "not permitted"),
        (UNLOAD_PATH, {}, "lora_name", "needs to be provided"),
        (UNLOAD_PATH, [], None, "JSON object"),
    ],
)
async def test_a_bad_body_reaches_no_worker(
    api: OpenAIApi, http: httpx.AsyncClient, path: str, body: Any, param: str | None, words: str
) -> None:
    response = await http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, param, "BadRequestError")
    assert words in error["message"]
    assert not api.cluster.fleet.told


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (InvalidRequestError("decode-0: it uses DoRA", param="lora_path"), 400),
        (ModelNotFoundError("The lora adapter 'sql' cannot be found."), 404),
        (UnavailableError("decode-1 cannot be reached"), 503),
    ],
)
async def test_a_failed_order_says_why(
    api: OpenAIApi, http: httpx.AsyncClient, failure: Exception, status: int
) -> None:
    api.cluster.fleet.failure = failure
    for path in ADAPTER_PATHS:
        response = await http.post(path, json=SQL if path == LOAD_PATH else {"lora_name": "sql"})
        assert (response.status_code, response.json()["error"]["message"]) == (status, str(failure))


def test_both_need_an_operator() -> None:
    assert set(ADAPTER_PATHS) <= OPERATOR_PATHS


async def test_adapters_are_listed_below_their_model(
    api: OpenAIApi, http: httpx.AsyncClient
) -> None:
    api.adapters.hold("sql", "/a/sql")
    cards = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
        (MODEL, MODEL, None),
        ("alias", MODEL, None),
        ("sql", "/a/sql", MODEL),
    ]
    assert (await http.get("/v1/models/sql")).json() == cards[2]


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
QUESTION = {"prompt": [5, 6], "max_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {**QUESTION, "n": 2, "best_of": 3, "stream": False}),
        ("/v1/completions", {**QUESTION, "prompt": [[5], [6]]}),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "Hi"}),
        ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 3}}),
        ("/v1/chat/completions/batch", {"messages": [CHAT["messages"]] * 2}),
        ("/generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [1, 2]}),
    ],
)
async def test_every_door_asks_for_the_adapter_and_answers_with_its_name(
    api: OpenAIApi, http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    sql = api.adapters.hold("sql", "/a/sql")
    streams = path not in ("/v1/chat/completions/batch", "/generative_scoring")
    sent = {"model": "sql", **({"stream": stream} if streams else {}), **body}
    response = await http.post(path, json=sent)
    assert response.status_code == 200, response.text
    assert '"model":"sql"' in response.text
    assert api.generator.requests
    assert [(r.model, r.adapter) for r in api.generator.requests] == [("sql", sql)] * len(
        api.generator.requests
    )
    # The same words for the model itself.
    api.generator.requests.clear()
    await http.post(path, json={**sent, "model": "alias"})
    assert {(r.model, r.adapter) for r in api.generator.requests} == {(MODEL, None)}
