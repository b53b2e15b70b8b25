"""A router without a tokenizer: token ids in, token ids out, and texts refused by name."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from services.router.parts import open_parts
from tests.fakes.router.one_pool import OnePool
from tests.fakes.scripted.decode import say
from tests.integration.router.conftest import Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from services.router.config import RouterConfig

IDS = [5, 6, 7]
EOS = 3


@pytest.fixture
async def bench(config: RouterConfig, tmp_path: Path) -> AsyncIterator[Bench]:
    """Its model has a configuration and nothing else."""
    folder = tmp_path / "bare" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300, "eos_token_id": EOS}))
    config = replace(config, model=folder, skip_tokenizer_init=True)
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_parts(config))
        yield Bench(config, stack, OnePool(parts))


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        one_model(bench.backend()),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        yield http


async def test_token_ids_are_answered_with_token_ids(bench: Bench, http: httpx.AsyncClient) -> None:
    worker = await bench.add_worker(say(8, 9))
    asked: dict[str, Any] = {"token_ids": IDS, "sampling_params": {}}
    reply = await http.post("/inference/v1/generate", json=asked)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["token_ids"] == [8, 9]
    body = {"prompt": IDS, "return_token_ids": True}
    [choice] = (await http.post("/v1/completions", json=body)).json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("", [8, 9])
    sent = worker.requests[-1]
    assert list(sent.token_ids) == IDS
    assert list(sent.sampling.eos_token_ids) == [EOS]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "Hi"}, "prompt"),
        ("/v1/completions", {"prompt": IDS, "stop": "x"}, "stop"),
        ("/v1/completions", {"prompt": IDS, "bad_words": ["x"]}, "bad_words"),
        ("/v1/completions", {"prompt": IDS, "guided_regex": "a"}, "guided_regex"),
        ("/v1/completions", {"prompt": IDS, "echo": True}, "echo"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, None),
        ("/tokenize", {"prompt": "Hi"}, "prompt"),
        ("/detokenize", {"tokens": IDS}, "tokens"),
    ],
)
async def test_texts_are_refused_by_name(
    bench: Bench, http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str | None
) -> None:
    worker = await bench.add_worker(say(8))
    reply = await http.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param or error["param"]), error
    assert "--skip-tokenizer-init" in error["message"] or param is None, error
    assert not worker.requests
