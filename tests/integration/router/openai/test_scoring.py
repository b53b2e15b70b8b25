"""POST /generative_scoring before a worker that knows the probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from baton.v1 import decode_pb2
from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from tests.fakes.scripted.decode import Script, Step, position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.router.conftest import Bench

URL = "/generative_scoring"
#: By the prompt's last token: the log probabilities of the labels 7 and 9.
KNOWN = {5: {7: math.log(0.3), 9: math.log(0.1)}, 6: {7: math.log(0.2), 9: math.log(0.2)}}


def answer(request: decode_pb2.DecodeRequest) -> Script:
    assert list(request.sampling.logprob_token_ids.ids) == [7, 9]
    top = KNOWN[request.token_ids[-1]]
    extra = decode_pb2.DecodeResponse(logprobs=[position(3, -0.1, top)])
    return Script([Step(token_ids=(3,), extra=extra)])


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    worker = await bench.add_worker()
    worker.answer = answer
    app = create_app(
        one_model(bench.backend()),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        yield http


async def score(http: httpx.AsyncClient, **fields: Any) -> list[float]:
    body = {"query": [1, 2], "items": [[5], [6]], "label_token_ids": [7, 9], **fields}
    response = await http.post(URL, json=body)
    assert response.status_code == 200, response.text
    reply = response.json()
    assert [item["index"] for item in reply["data"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] == 2
    return [item["score"] for item in reply["data"]]


async def test_the_score_is_the_first_labels_probability(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    assert await score(http) == pytest.approx([0.75, 0.5])
    assert await score(http, apply_softmax=False) == pytest.approx([0.3, 0.2])
    asked = [list(request.token_ids) for request in bench.workers[0].requests]
    assert sorted(asked[:2]) == [[1, 2, 5], [1, 2, 6]]
    assert bench.workers[0].requests[0].sampling.max_tokens == 1


async def test_the_query_may_come_last_and_texts_are_tokenised(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    await score(http, query=[5], items=[[1], [2]], item_first=True)
    asked = sorted(list(request.token_ids) for request in bench.workers[0].requests)
    assert asked == [[1, 5], [2, 5]]
    tokenizer = bench.parts.tokenizer
    KNOWN[tokenizer.encode("b", False)[-1]] = KNOWN[5]
    assert await score(http, query="a", items=["b", "xb"]) == pytest.approx([0.75, 0.75])
    asked = [list(request.token_ids) for request in bench.workers[0].requests[2:]]
    assert tokenizer.encode("a") + tokenizer.encode("b", False) in asked


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"items": []}, "items"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [10**6]}, "label_token_ids"),
        ({"items": [[10**6]]}, "items[0]"),
        ({"query": None}, "query"),
    ],
)
async def test_what_is_wrong_is_named(
    bench: Bench, http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    body = {"query": [1, 2], "items": [[5]], "label_token_ids": [7, 9], **fields}
    response = await http.post(URL, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
    assert not bench.workers[0].requests
