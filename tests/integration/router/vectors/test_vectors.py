"""The endpoints of vectors before prefill workers with a small real Pooler, over real gRPC."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baton_client import (
    AsyncBaton,
    InvalidRequestError,
    ModelNotFoundError,
    RequestCancelledError,
)
from services.router.vectors import attempts
from services.router.vectors.pipeline import VectorPipeline
from services.router.workers import endpoints
from shared.directory.base import STAGE, AdapterPlace, AdapterState
from shared.errors import InternalError, WorkerLostError
from shared.generation.limits import FLOAT_BYTES, RequestLimits
from shared.identity import Role, WorkerId
from shared.request.adapter_ref import AdapterRef
from shared.rpc.protocol import POOLING_MINOR
from tests.fakes.processes.call_threads import threads_of
from tests.fakes.router.vector_door import URL, Door, close, joined, until
from tests.fakes.scripted.adapters import digest
from tests.fakes.worker.poolers import (
    CLASSIFIER,
    EMBEDDER,
    SIZE,
    PoolWorker,
    TokenPooler,
    embedding,
    rows_of,
)


async def test_every_shape_of_input_gets_its_vectors(door: Door) -> None:
    [worker] = await joined(door)
    texts = ["hello", "other words", "hello"]
    ids = [door.ids(text) for text in texts]
    wanted = [embedding(each) for each in ids]
    for given, expected in (
        (texts[0], wanted[:1]),
        (texts, wanted),
        (ids[0], wanted[:1]),
        (ids, wanted),
    ):
        reply = await door.ask(input=given)
        assert [item["index"] for item in reply["data"]] == list(range(len(expected)))
        assert all(
            close(item["embedding"], vector)
            for item, vector in zip(reply["data"], expected, strict=True)
        )
    assert reply["object"] == "list"
    assert reply["data"][0]["object"] == "embedding"
    assert reply["model"] == "tiny"
    assert reply["id"].startswith("embd-")
    total = sum(map(len, ids))
    cached = sum(len(each) // 2 for each in ids)
    assert reply["usage"] == {
        "prompt_tokens": total,
        "total_tokens": total,
        "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    assert worker.metrics.get_sample_value("baton_pooled_texts_total", {"outcome": "ok"}) == 8
    assert door.metric("vector_texts_total", task="embed") == 8
    assert door.metric("vector_requests_total", task="embed", outcome="ok") == 4


@pytest.mark.parametrize(
    ("url", "task", "kind", "num_texts"),
    [
        (URL, None, "embedding", 180),
        ("/pooling", "token_embed", "pooling", 90),
        ("/classify", None, "class", 520),
    ],
)
async def test_many_numbers_are_written_in_a_thread(
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    task: str | None,
    kind: str,
    num_texts: int,
) -> None:
    await joined(door, pooler=TokenPooler(CLASSIFIER if kind == "class" else EMBEDDER))
    threads = threads_of(monkeypatch, f"services.router.openai.vectors.endpoints.{kind}_item")
    texts = [f"text {i}" for i in range(num_texts)]
    reply = await door.ask(url, input=texts, **({} if task is None else {"task": task}))
    assert len(threads) == len(texts) == len(reply["data"])
    assert [item["index"] for item in reply["data"]] == list(range(len(texts)))
    assert threading.main_thread() not in threads


async def test_numbers_are_written_as_asked_for(door: Door) -> None:
    await joined(door)
    wanted = embedding(door.ids("hello"))

    async def encoded(**fields: Any) -> bytes:
        reply = await door.ask(input="hello", encoding_format="base64", **fields)
        return base64.b64decode(reply["data"][0]["embedding"])

    assert close(np.frombuffer(await encoded(), "<f4"), wanted)
    assert close(np.frombuffer(await encoded(endianness="big"), ">f4"), wanted)
    half = np.frombuffer(await encoded(embed_dtype="float16"), "<f2")
    assert np.allclose(half, wanted, atol=1e-3)
    assert len(half) == SIZE


async def test_fewer_dimensions_and_no_length(door: Door) -> None:
    [worker] = await joined(door)
    ids = door.ids("hello")
    reply = await door.ask(input="hello", dimensions=3)
    assert close(reply["data"][0]["embedding"], embedding(ids, dimensions=3))
    reply = await door.ask(input="hello", use_activation=False)
    assert close(reply["data"][0]["embedding"], rows_of(ids).mean(0))
    reply = await door.ask(input="hello", normalize=False)
    assert close(reply["data"][0]["embedding"], rows_of(ids).mean(0))
    assert [request.dimensions for request in worker.pooler.requests] == [3, None, None]


async def test_a_prompt_of_the_checkpoint_is_put_in_front(door: Door) -> None:
    [worker] = await joined(door)
    await door.ask(input=["hello"], prompt_name="query")
    assert list(worker.pooler.requests[-1].token_ids) == door.ids("q: hello")
    await door.ask(input="hello")
    assert list(worker.pooler.requests[-1].token_ids) == door.ids("hello")
    error = await door.refusal(input="hello", prompt_name="passage")
    assert error["param"] == "prompt_name"
    assert "document, query" in error["message"]


async def test_a_conversation_is_one_text(door: Door) -> None:
    [worker] = await joined(door)
    messages = [{"role": "user", "content": "hi"}]
    reply = await door.ask(messages=messages)
    [request] = worker.pooler.requests
    text = door.bench.parts.chat_template.render(messages, add_generation_prompt=False)
    assert list(request.token_ids) == door.bench.parts.tokenizer.encode(text, False)
    assert close(reply["data"][0]["embedding"], embedding(request.token_ids))
    error = await door.refusal(messages=messages, chat_template="{{ messages }}")
    assert error["param"] == "chat_template"


async def test_texts_are_shortened_only_if_that_is_asked_for(door: Door) -> None:
    [worker] = await joined(door)
    error = await door.refusal(input=["short", "x" * 100])
    assert error["param"] == "input[1]"
    assert "at most 64" in error["message"]
    assert "truncate_prompt_tokens" in error["message"]
    assert not worker.pooler.requests
    long = "abcdefghij" * 10
    await door.ask(input=long, truncate_prompt_tokens=-1)
    assert len(worker.pooler.requests[-1].token_ids) == 64
    ids = list(range(10))
    await door.ask(input=ids, truncate_prompt_tokens=4)
    assert worker.pooler.requests[-1].token_ids == (0, 1, 2, 3)
    await door.ask(input=ids, truncate_prompt_tokens=4, truncation_side="left")
    assert worker.pooler.requests[-1].token_ids == (6, 7, 8, 9)
    error = await door.refusal(input=ids, truncate_prompt_tokens=65)
    assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", [1]]}, "input[1]"),
        ({"input": [10**6]}, "input"),
        ({"input": 7}, "input"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 2**40}, "priority"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
async def test_what_is_wrong_is_named(door: Door, fields: dict[str, Any], param: str) -> None:
    [worker] = await joined(door)
    error = await door.refusal(**fields)
    assert error["param"] == param, error
    assert not worker.pooler.requests


async def test_numbers_that_are_not_finite_are_no_vector(door: Door) -> None:
    [worker] = await joined(door)
    worker.pooler.factor = float("nan")
    await door.refusal(input="hello", status=500)
    assert door.metric("vector_requests_total", task="embed", outcome="failed") == 1
    worker.pooler.factor = 1.0
    await door.ask(input="hello")


async def test_who_makes_no_vectors_says_what_to_do(door: Door) -> None:
    error = await door.refusal(input="hello", status=503)
    await door.bench.add_worker()
    error = await door.refusal(input="hello")
    assert "tiny generates text and makes no vectors" in error["message"]
    assert "--convert embed" in error["message"]
    await joined(door, is_only=False)
    await door.ask(input="hello")
    error = await door.refusal("/v1/classify", input="hello")
    assert "makes embed, token_embed, not classify" in error["message"]
    # Beside decode workers, answers are still to be had.
    assert (await door.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def test_vectors_beside_answers_are_missed_without_prefill_workers(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may ask again: they are not unsupported because their last worker is gone."""
    monkeypatch.setattr(endpoints, "RETURN_S", 0.0)
    await door.bench.add_worker()
    [worker] = await joined(door, is_only=False)
    await door.ask(input="hello")
    parts = door.bench.parts
    await parts.registry.deregister(worker.record.worker)
    await until(lambda: not parts.endpoints.of_role(Role.PREFILL))
    error = await door.refusal(input="hello", status=503)
    assert "prefill worker" in error["message"]
    assert (await door.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def test_an_embedder_is_ready_alone_and_refuses_answers(door: Door) -> None:
    assert (await door.http.get("/ready")).status_code == 503
    await joined(door)
    assert (await door.http.get("/ready")).status_code == 200
    for url, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}}),
    ):
        error = await door.refusal(url, **body)
        assert "tiny makes vectors and no text" in error["message"], url
        assert "/v1/embeddings" in error["message"]
    models = (await door.http.get("/v1/models")).json()
    assert models["data"][0]["max_model_len"] == 64


#: Workers may queue as much as is sent there: the request's own bound is what is left.
@pytest.mark.parametrize("bench", [{"max_worker_queue_ms": 1e9}], indirect=True)
async def test_texts_of_a_request_are_spread_and_bounded(door: Door) -> None:
    workers = await joined(door, "a", "b")
    texts = [f"text {i}" for i in range(200)]
    for worker in workers:
        worker.pooler.gate = asyncio.Event()
    asking = asyncio.create_task(door.ask(input=texts))
    await until(lambda: sum(worker.pooler.num_running for worker in workers) >= 64)
    # What they get later depends on which one is quicker.
    assert min(worker.pooler.num_running for worker in workers) > 24
    for worker in workers:
        assert worker.pooler.gate is not None
        worker.pooler.gate.set()
    reply = await asking
    assert [item["index"] for item in reply["data"]] == list(range(200))
    assert all(
        close(item["embedding"], embedding(door.ids(text)))
        for item, text in zip(reply["data"], texts, strict=True)
    )
    assert sum(len(worker.pooler.requests) for worker in workers) == 200
    assert sum(worker.pooler.most_at_once for worker in workers) <= 64


async def test_other_coroutines_run_while_the_texts_of_a_request_begin(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await joined(door)
    routed, at_once, seen = VectorPipeline._routing, [], asyncio.Event()

    def noted(self: VectorPipeline, *args: Any) -> Any:
        if not at_once or seen.is_set():
            at_once.append(0)
            seen.clear()
            asyncio.get_running_loop().call_soon(seen.set)
        at_once[-1] += 1
        return routed(self, *args)

    monkeypatch.setattr(VectorPipeline, "_routing", noted)
    await door.ask(input=["hello"] * 40)
    assert sum(at_once) == 40
    assert max(at_once) <= 4


async def test_equal_beginnings_go_to_one_worker(door: Door) -> None:
    workers = await joined(door, "a", "b")
    beginning = "the same long instruction of all queries: "
    for i in range(8):
        await door.ask(input=f"{beginning}{i}")
    assert sorted(len(worker.pooler.requests) for worker in workers) == [0, 8]
    # The next text has nothing in common with them, and finds the other worker idle as well.
    explained = (await door.http.post("/v1/route", json={"input": f"{beginning}9"})).json()
    assert explained["route"]["decode"] == ""
    [best] = explained["route"]["prefill"]
    assert best == next(w.name for w in workers if w.pooler.requests)
    assert explained["prefill"]["candidates"][0]["num_held_tokens"] > 0


async def test_a_lost_worker_s_texts_go_to_another(door: Door) -> None:
    first, second = await joined(door, "a", "b")
    for worker in (first, second):
        worker.pooler.gate = asyncio.Event()
    asking = asyncio.create_task(door.ask(input=[f"text {i}" for i in range(40)]))
    await until(lambda: bool(first.pooler.num_running and second.pooler.num_running))
    await first.die()
    assert second.pooler.gate is not None
    second.pooler.gate.set()
    reply = await asking
    assert len(reply["data"]) == 40
    assert len({request.request_id for request in second.pooler.requests}) >= 40


async def test_a_text_that_sleep_interrupts_waits_for_the_workers_to_wake_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "WAIT_FOR_WORKER_S", 0.1)
    monkeypatch.setattr(endpoints, "RETURN_S", 0.0)
    [worker] = await joined(door)
    worker.pooler.gate = asyncio.Event()
    asking = asyncio.create_task(door.ask(input="hello"))
    await until(lambda: bool(worker.pooler.num_running))
    bench, record = door.bench, worker.record
    asleep = replace(record, worker=WorkerId.born("asleep"), labels={STAGE: "asleep"})
    await bench.parts.registry.register(asleep, 60)
    await bench.parts.registry.deregister(record.worker)
    await until(lambda: bench.parts.endpoints.is_asleep)
    await worker.die()
    await asyncio.sleep(0.4)
    assert not asking.done()
    await joined(door, "awake")
    assert len((await asking)["data"]) == 1


@pytest.mark.parametrize("error", [WorkerLostError("gone"), InternalError("a step failed")])
async def test_one_failed_attempt_is_repeated(door: Door, error: Exception) -> None:
    [worker] = await joined(door)
    worker.error = error
    await door.ask(input="hello")
    assert worker.pooler.requests[0].request_id.endswith("-0.1")


async def test_a_client_that_leaves_frees_all(door: Door) -> None:
    [worker] = await joined(door)
    worker.pooler.gate = asyncio.Event()
    asking = asyncio.create_task(door.ask(input=[f"text {i}" for i in range(10)]))
    await until(lambda: worker.pooler.num_running == 10)
    asking.cancel()
    await until(lambda: not worker.pooler.num_running and door.bench.is_idle())
    assert worker.pooler.cancelled
    cancelled = worker.metrics.get_sample_value(
        "baton_pooled_texts_total", {"outcome": "cancelled"}
    )
    assert cancelled == len(worker.pooler.cancelled)


async def test_requests_end_by_their_names(door: Door) -> None:
    """Those of a name, over HTTP and gRPC, then all; nothing stays at the worker."""
    [worker] = await joined(door)
    worker.pooler.gate = asyncio.Event()

    def ask(name: str) -> asyncio.Task[Any]:
        asked = {"input": ["a", "b"]}
        return asyncio.create_task(door.http.post(URL, json=asked, headers={"x-request-id": name}))

    async def aborted(**body: Any) -> int:
        found: int = (await door.ask("/abort_requests", **body))["aborted"]
        return found

    async with door.grpc() as address, AsyncBaton(address) as sdk:
        first, second, third = (ask(name) for name in ("one", "two", "three"))
        fourth = asyncio.create_task(sdk.embed("c", request_id="four"))
        await until(lambda: worker.pooler.num_running == 7)
        assert await aborted(request_ids=["embd-one", "four", "five"]) == 2
        refused = await first
        assert refused.status_code == 499
        assert "was aborted" in refused.json()["error"]["message"]
        with pytest.raises(RequestCancelledError, match="was aborted"):
            await fourth  # and did not ask again
        await until(lambda: worker.pooler.num_running == 4)
        assert not second.done()
        assert await aborted() == 2
        assert {(await each).status_code for each in (second, third)} == {499}
    await until(lambda: not worker.pooler.num_running and door.bench.is_idle())
    assert door.metric("vector_requests_total", task="embed", outcome="cancelled") == 4
    assert await aborted() == 0


async def test_each_token_has_a_vector(door: Door) -> None:
    await joined(door)
    reply = await door.ask("/pooling", input="hello", task="token_embed")
    assert close(reply["data"][0]["data"], rows_of(door.ids("hello")))
    reply = await door.ask("/pooling", input="hello")
    assert close(reply["data"][0]["data"], embedding(door.ids("hello")))


async def test_a_text_whose_vectors_fit_no_message_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 60
    place = "services.router.vectors.service.MAX_VECTOR_BYTES"
    monkeypatch.setattr(place, longest * SIZE * FLOAT_BYTES)
    [worker] = await joined(door)
    await door.ask("/pooling", input=[[5] * longest, [6]], task="token_embed")
    texts = [[5], [6] * (longest + 1)]
    error = await door.refusal("/pooling", input=texts, task="token_embed")
    assert (error["param"], "at most 60" in error["message"]) == ("input[1]", True)
    await door.ask("/pooling", input=texts, task="embed")
    assert len(worker.pooler.requests) == 4


@pytest.mark.parametrize(
    "bench", [{"limits": RequestLimits(max_vector_bytes=6 * SIZE * FLOAT_BYTES)}], indirect=True
)
async def test_vectors_of_tokens_are_bounded_together(door: Door) -> None:
    [worker] = await joined(door)
    await door.ask("/pooling", input=[[5, 6, 7], [5, 6, 8]], task="token_embed")
    error = await door.refusal("/pooling", input=[[5, 6, 7], [5, 6, 8, 9]], task="token_embed")
    assert (error["param"], "at most 6 tokens" in error["message"]) == ("input", True)
    await door.ask("/pooling", input=[[5, 6, 7], [5, 6, 8, 9]], task="embed")
    async with door.grpc() as address, AsyncBaton(address) as client:
        with pytest.raises(InvalidRequestError, match="--max-vector-bytes"):
            await client.embed([[5, 6, 7], [5, 6, 8, 9]], each_token=True)
    assert len(worker.pooler.requests) == 4


async def test_adapters_make_vectors_beside_their_model(door: Door) -> None:
    """Where they are, if it is the same otherwise; replies have their names."""
    old, other, holder = (PoolWorker(name, TokenPooler()) for name in ("old", "other", "holder"))
    old.protocol_minor = POOLING_MINOR
    sql = AdapterRef("sql", digest("sql"), "/a/sql")
    for worker, place in (
        (old, AdapterPlace.DEVICE),
        (other, AdapterPlace.KNOWN),
        (holder, AdapterPlace.DEVICE),
    ):
        worker.adapters = (AdapterState(adapter=sql, rank=8, place=place, load_ms=5000.0),)
        await worker.join(door.bench)
        await door.bench.report(worker)
    wanted = embedding(door.ids("hello"))
    for _ in range(3):
        reply = await door.ask(input="hello", model="sql")
        assert reply["model"] == "sql"
        assert close(reply["data"][0]["embedding"], wanted.flip(0))
        base = await door.ask(input="hello")
        assert base["model"] == "tiny"
        assert close(base["data"][0]["embedding"], wanted)
    asked = {w.name: [r.adapter for r in w.pooler.requests] for w in (old, other, holder)}
    assert asked["holder"].count(sql) == 3
    assert sql not in asked["old"] + asked["other"]
    for url, fields in (
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/pooling", {"input": "a"}),
    ):
        assert (await door.ask(url, model="sql", **fields))["model"] == "sql"
        assert holder.pooler.requests[-1].adapter == sql
        error = await door.refusal(url, 404, model="web", **fields)
        assert "served: tiny, sql" in error["message"]
    explained = await door.ask("/v1/route", model="sql", input="hello")
    costs = {each["worker"]: each["terms_ms"] for each in explained["prefill"]["candidates"]}
    assert costs["other"]["adapter"] == 5000.0
    assert costs["holder"]["adapter"] == 0.0
    async with door.grpc() as address, AsyncBaton(address) as sdk:
        [vector] = (await sdk.embed(["hello"], model="sql")).vectors
        assert close(vector.numbers, wanted.flip(0))
        with pytest.raises(ModelNotFoundError, match="served: tiny, sql"):
            await sdk.embed(["hello"], model="web")


async def test_priority_and_salt_reach_the_worker(door: Door) -> None:
    [worker] = await joined(door)
    await door.ask(input="hello", priority=-3, cache_salt="s")
    [request] = worker.pooler.requests
    assert request.priority == -3
    assert request.cache_salt
