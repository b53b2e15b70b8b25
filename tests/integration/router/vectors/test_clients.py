"""Vectors over gRPC by our SDK, and over HTTP by other people's clients."""

from __future__ import annotations

import asyncio
import base64
import importlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest

from baton_client import AsyncBaton, InvalidRequestError, OverloadedError, UnsupportedError
from services.router.admission.caller import Caller
from services.router.admission.tenant import Tenant
from services.router.doors.http_server import HttpServer
from tests.fakes.router.vector_door import Door, joined, until
from tests.fakes.worker.poolers import CLASSIFIER, RERANKER, SIZE, TokenPooler, embedding, rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


TEXTS = ["hello", "other words", "a third text"]


@asynccontextmanager
async def http_port(door: Door) -> AsyncIterator[str]:
    server = HttpServer(door.app, drain_grace_s=0)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        await server.stop()


def are_theirs(door: Door, found: Any, texts: list[str] | None = None) -> bool:
    wanted = [embedding(door.ids(text)).numpy() for text in texts or TEXTS]
    return bool(np.allclose(np.asarray(found), np.asarray(wanted), atol=1e-6))


async def test_the_sdk_embeds(door: Door) -> None:
    await joined(door)
    async with door.grpc() as address, AsyncBaton(address) as client:
        found = await client.embed(TEXTS)
        assert are_theirs(door, [each.numbers for each in found.vectors])
        assert found.usage.prompt_tokens == sum(len(door.ids(text)) for text in TEXTS)
        assert found.usage.sources.local_hit == found.usage.cached_tokens > 0
        one = await client.embed("hello", dimensions=2, request_id="mine")
        assert one.request_id == "mine"
        assert one.vectors[0].size == 2
        by_ids = await client.embed([door.ids("hello")])
        assert are_theirs(door, [by_ids.vectors[0].numbers], ["hello"])
        rows = (await client.embed("hello", each_token=True)).vectors[0].rows
        assert np.allclose(np.asarray(rows), rows_of(door.ids("hello")), atol=1e-6)
        many = await client.embed([f"text {i}" for i in range(200)], prompt_name="query")
        assert are_theirs(
            door, [v.numbers for v in many.vectors], [f"q: text {i}" for i in range(200)]
        )
        for wrong, param in (
            ({"dimensions": SIZE + 1}, "dimensions"),
            ({"prompt_name": "x"}, "prompt_name"),
            ({"truncate_prompt_tokens": 1000}, "truncate_prompt_tokens"),
        ):
            with pytest.raises(InvalidRequestError) as refused:
                await client.embed("hello", **wrong)
            assert refused.value.param == param
        with pytest.raises(UnsupportedError, match="makes embed"):
            await client.classify("hello")
        with pytest.raises(UnsupportedError, match="makes vectors and no text"):
            await client.generate("hello", max_tokens=1)


async def test_the_sdk_scores_and_classifies(door: Door) -> None:
    await joined(door, pooler=TokenPooler(RERANKER))
    async with door.grpc() as address, AsyncBaton(address) as client:
        ranking = await client.rerank("abc", ["xyz", "abx", "abc"], top_n=2)
        assert [(each.index, each.text) for each in ranking.results] == [(2, "abc"), (1, "abx")]
        assert ranking.usage.prompt_tokens
        scores = (await client.score("abc", ["xyz", "abx", "abc"])).scores
        assert scores[2] == 1.0 == ranking.results[0].relevance_score
        assert scores[0] < scores[1]
        with pytest.raises(InvalidRequestError) as refused:
            await client.score(["a", "b"], ["c"])
        assert refused.value.param == "queries"


async def test_the_sdk_classifies(door: Door) -> None:
    [worker] = await joined(door, pooler=TokenPooler(CLASSIFIER))
    async with door.grpc() as address, AsyncBaton(address) as client:
        [found] = (await client.classify("abc", priority=3)).results
        assert found.label in CLASSIFIER.labels
        assert sum(found.probs) == pytest.approx(1)
        assert worker.pooler.requests[0].priority == 3


async def test_a_client_over_grpc_that_leaves_frees_all(door: Door) -> None:
    [worker] = await joined(door)
    worker.pooler.gate = asyncio.Event()
    async with door.grpc() as address, AsyncBaton(address) as client:
        asking = asyncio.create_task(client.embed(TEXTS))
        await until(lambda: worker.pooler.num_running == len(TEXTS))
        asking.cancel()
        await until(lambda: not worker.pooler.num_running and door.bench.is_idle())


async def test_a_tenant_s_tokens_count(door: Door) -> None:
    await joined(door)
    num_tokens = sum(len(door.ids(text)) for text in TEXTS)
    tenant = Tenant(name="t", max_tokens_per_minute=num_tokens + 1)
    async with door.grpc(Caller(tenant=tenant)) as address, AsyncBaton(address) as client:
        await client.embed(TEXTS)
        with pytest.raises(OverloadedError) as refused:
            await client.embed(TEXTS)
        assert refused.value.retry_after_s
    used = door.registry.get_sample_value("baton_tenant_prompt_tokens_total", {"tenant": "t"})
    assert used == num_tokens


async def test_openai_s_client(door: Door) -> None:
    await joined(door)
    async with (
        http_port(door) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        # It asks for base64 by itself, and decodes it.
        found = await client.embeddings.create(model="tiny", input=TEXTS)
        assert are_theirs(door, [each.embedding for each in found.data])
        assert found.usage.prompt_tokens == found.usage.total_tokens
        fewer = await client.embeddings.create(
            model="tiny", input=TEXTS[0], dimensions=2, encoding_format="float", user="u"
        )
        assert len(fewer.data[0].embedding) == 2
        with pytest.raises(openai.BadRequestError) as refused:
            await client.embeddings.create(model="tiny", input="x" * 100)
        assert refused.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="ada", input="x")


async def test_langchain_s_embedder(door: Door) -> None:
    try:
        package = importlib.import_module("langchain_openai")
    except ImportError:
        pytest.skip("langchain_openai is not installed; it is in the extra `clients`")
    await joined(door)
    async with http_port(door) as url:
        embedder = package.OpenAIEmbeddings(
            model="tiny",
            base_url=url,
            api_key="none",
            # Otherwise it sends token ids of OpenAI's own models.
            check_embedding_ctx_length=False,
        )
        try:
            assert are_theirs(door, await embedder.aembed_documents(TEXTS))
            assert are_theirs(door, [await embedder.aembed_query(TEXTS[0])], TEXTS[:1])
        finally:
            await embedder.async_client._client.close()
            embedder.client._client.close()


async def test_anythingllm_s_calls(door: Door) -> None:
    """Its generic embedder is OpenAI's client for JavaScript: chunks in lists of 500.

    That client asks for base64 where the caller names no format, as the one for Python.
    """
    await joined(door)
    chunks = [f"chunk {i}" for i in range(500)]
    reply = await door.ask(model="tiny", input=chunks, encoding_format="base64")
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in reply["data"]]
    assert are_theirs(door, found, chunks)
    query = await door.ask(model="tiny", input=[TEXTS[0]])
    assert are_theirs(door, [query["data"][0]["embedding"]], TEXTS[:1])
