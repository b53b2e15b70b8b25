"""Several models behind one router: each request reaches workers of its model, and no others."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import router_pb2
from services.router.catalogue.fleets import AllFleets
from shared.directory.base import BlockUpdate
from shared.errors import InvalidRequestError, ModelNotFoundError
from shared.identity import Role
from shared.kv.identity import KVIdentity
from shared.request.adapter_ref import AdapterRef
from shared.rpc.status import from_rpc_error
from tests.fakes.router.catalogue_site import LINGER_S, CatalogueSite, catalogue_site
from tests.fakes.scripted.decode import Script, Step, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ONLY_BETA = {"authorization": "Bearer only-beta"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[CatalogueSite]:
    async with catalogue_site(tmp_path) as found:
        yield found


def messages(site: CatalogueSite, worker: str) -> int:
    return len(site.workers[worker].requests)


async def test_a_request_reaches_the_model_that_it_names(site: CatalogueSite) -> None:
    for model in ("alpha", "beta", "gamma"):
        await site.join(f"{model}-0", model)
    for name, model in (("alpha", "alpha"), ("a", "alpha"), ("b", "beta"), ("gamma", "gamma")):
        before = messages(site, f"{model}-0")
        answer = await site.ask(name)
        assert (answer.status_code, answer.json()["model"]) == (200, model)
        assert messages(site, f"{model}-0") == before + 1
        # Each model's own tokenizer wrote the prompt.
        sent = site.workers[f"{model}-0"].requests[-1].token_ids
        served = site.pool(model).served
        assert served is not None
        assert list(sent) == served.text.tokenizer.encode("hello", True)
    assert (await site.ask()).json()["model"] == "alpha"
    assert sum(messages(site, name) for name in site.workers) == 5
    alpha, gamma = (site.workers[f"{m}-0"].requests[0].token_ids for m in ("alpha", "gamma"))
    assert list(gamma[1:]) == list(alpha)


async def test_every_api_goes_by_the_model(site: CatalogueSite) -> None:
    await site.join("alpha-0", "alpha")
    beta = await site.join("beta-0", "beta")
    chat = {"model": "beta", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/responses": {"model": "b", "input": "hello"},
        "/generative_scoring": {
            "model": "b", "query": "a", "items": ["b"], "label_token_ids": [70, 71],
        },
        "/inference/v1/generate": {
            "model": "beta", "token_ids": [5, 6], "sampling_params": {"max_tokens": 2},
        },
        "/invocations": {"model": "beta", "prompt": "a", "max_tokens": 2},
    }  # fmt: skip
    for number, (path, body) in enumerate(bodies.items(), start=1):
        await site.http.post(path, json=body)
        assert (len(beta.requests), messages(site, "alpha-0")) == (number, 0), path
    tokens = {}
    for model in ("alpha", "beta"):
        reply = await site.http.post("/tokenize", json={"model": model, "prompt": "hello"})
        tokens[model] = reply.json()["tokens"]
    assert tokens["alpha"] != tokens["beta"]
    text = await site.http.post("/detokenize", json={"model": "b", "tokens": tokens["beta"]})
    assert text.json()["prompt"].endswith("hello")
    body = {"model": "beta", "prompt": "hello"}
    route = (await site.http.post("/v1/route", json=body)).json()
    assert "beta-0" in str(route)
    assert "alpha-0" not in str(route)
    shown = [
        (await site.http.get("/tokenizer_info", params={"model": m})).status_code
        for m in ("alpha", "beta", "delta")
    ]
    assert shown == [200, 200, 404]


async def test_grpc_goes_by_the_model_too(site: CatalogueSite) -> None:
    await site.join("alpha-0", "alpha")
    beta = await site.join("beta-0", "beta")
    params = router_pb2.GenerationParams(max_tokens=2)
    request = router_pb2.GenerateRequest(
        model="b", prompt=router_pb2.Prompt(text="hello"), params=params
    )
    assert [r async for r in site.grpc.Generate(request)]
    chat = router_pb2.ChatRequest(
        model="beta",
        messages=[router_pb2.ChatMessage(role="user", content="hello")],
        params=params,
    )
    assert [r async for r in site.grpc.Chat(chat)]
    assert (len(beta.requests), messages(site, "alpha-0")) == (2, 0)
    listed = await site.grpc.ListModels(router_pb2.ListModelsRequest())
    assert [model.id for model in listed.models] == ["alpha", "a", "beta", "b"]
    metadata = (("authorization", "Bearer only-beta"),)
    listed = await site.grpc.ListModels(router_pb2.ListModelsRequest(), metadata=metadata)
    assert [model.id for model in listed.models] == ["beta", "b"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await site.grpc.Generate(
            router_pb2.GenerateRequest(model="alpha", prompt=request.prompt), metadata=metadata
        ).read()
    error = from_rpc_error(caught.value, peer="router")
    assert isinstance(error, ModelNotFoundError)
    assert "served: beta, b" in str(error)


async def test_an_unknown_model_and_one_of_others_are_refused_alike(site: CatalogueSite) -> None:
    await site.join("alpha-0", "alpha")
    await site.join("beta-0", "beta")
    answer = await site.ask("delta")
    assert answer.status_code == 404
    assert "served: alpha, a, beta, b, gamma" in answer.json()["error"]["message"]
    told = set()
    for name in ("delta", "alpha"):
        answer = await site.http.post(
            "/v1/completions", json={"model": name, "prompt": "x"}, headers=ONLY_BETA
        )
        assert answer.status_code == 404
        told.add(answer.json()["error"]["message"].replace(name, "?"))
    assert told == {"the model '?' does not exist; served: beta, b"}
    # Nothing is said of a model's body before its caller may use it.
    answer = await site.http.post("/v1/completions", json={"prompt": "x"}, headers=ONLY_BETA)
    assert answer.json()["model"] == "beta"
    listed = (await site.http.get("/v1/models", headers=ONLY_BETA)).json()["data"]
    assert [card["id"] for card in listed] == ["beta", "b"]
    one = await site.http.get("/v1/models/alpha", headers=ONLY_BETA)
    assert one.status_code == 404
    assert messages(site, "alpha-0") == 0


async def test_a_model_without_workers_is_unavailable_and_not_listed(site: CatalogueSite) -> None:
    assert (await site.http.get("/ready")).status_code == 503
    assert (await site.http.get("/v1/models")).status_code == 503
    await site.join("alpha-0", "alpha")
    answer = await site.ask("beta")
    assert answer.status_code == 503
    assert "no worker of the model 'beta' has joined" in answer.json()["error"]["message"]
    ready = (await site.http.get("/ready")).json()
    assert ready["notes"] == [
        "alpha: no prefill worker is ready: decode workers compute prompts themselves",
        "beta: no decode worker is ready",
        "gamma: no decode worker is ready",
    ]
    listed = (await site.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["alpha", "a"]


async def test_a_model_is_loaded_by_its_first_worker_and_dropped_behind_its_last(
    site: CatalogueSite,
) -> None:
    pool = site.pool("beta")
    await site.join("beta-0", "beta")
    await site.join("beta-1", "beta", role=Role.PREFILL)
    assert pool.served is not None
    first = pool.served
    await site.leave("beta-0")
    await asyncio.sleep(3 * LINGER_S)
    assert pool.served is first
    assert (await site.ask("beta")).status_code == 503
    await site.leave("beta-1")
    tokenizer = weakref.ref(first.text.tokenizer)
    pipeline = weakref.ref(first.pipeline)
    # Nothing but a collection frees a template of Jinja's: it is part of a cycle.
    template = weakref.ref(first.text.chat_template._choose(has_tools=False).args[0])  # type: ignore[attr-defined]
    assert template() is not None
    del first
    await site.until("beta", lambda: pool.served is None)
    assert (tokenizer(), pipeline()) == (None, None)
    assert template() is None
    await site.join("beta-0", "beta")
    assert (await site.ask("beta")).status_code == 200


async def test_a_running_answer_keeps_its_model(site: CatalogueSite) -> None:
    """A worker whose lease has ended still answers; what it says is decoded to the end."""
    worker = await site.join("beta-0", "beta")
    gate = asyncio.Event()
    worker.scripts = [Script([Step(token_ids=(70,)), Step(token_ids=(71,), gate=gate)])]
    asking = asyncio.create_task(site.ask("beta"))
    await worker.wait_requests(1)
    await site.router.registry.deregister(worker.record.worker)
    pool = site.pool("beta")
    await site.until("beta", lambda: pool.served is None)
    gate.set()
    answer = (await asking).json()
    assert answer["usage"]["completion_tokens"] == 2


async def test_files_that_cannot_be_used_are_named(site: CatalogueSite, tmp_path: Path) -> None:
    (tmp_path / "gamma" / "tokenizer.json").write_text("{")
    await site.join("gamma-0", "gamma", waits=False)
    pool = site.pool("gamma")
    async with asyncio.timeout(10):
        while not pool.problem:  # noqa: ASYNC110 a thread reads
            await asyncio.sleep(0.01)
    reasons = (await site.http.get("/ready")).json()["reasons"]
    assert any(reason.startswith("gamma: ") and "tokenizer" in reason for reason in reasons)
    assert (await site.ask("gamma")).status_code == 503


async def test_a_pool_judges_its_own_generations(site: CatalogueSite) -> None:
    """The identities of two models differ, and both are generation 0."""
    for model, digit in (("alpha", "1"), ("beta", "2")):
        await site.join(f"{model}-0", model, identity=digit * 64, joined_ms=1)
    for model in ("alpha", "beta"):
        assert (await site.ask(model)).status_code == 200
    refused = await site.join("beta-1", "beta", waits=False, identity="1" * 64, joined_ms=2)
    endpoints = site.pool("beta").endpoints
    await site.until("beta", lambda: any(e.refusal for e in endpoints.of_role(Role.DECODE)))
    for _ in range(4):
        assert (await site.ask("beta")).status_code == 200
    assert not refused.requests


async def test_entries_of_the_directory_never_mix(site: CatalogueSite) -> None:
    """Workers of a model are no source of another's blocks, though they hold the same hashes."""
    namespaces = {"alpha": "aa" * 32, "beta": "bb" * 32}
    workers = {}
    for model, namespace in namespaces.items():
        for number in range(2):
            name = f"{model}-{number}"
            workers[name] = await site.join(name, model, namespace=namespace)
    prompt = list(range(5, 5 + 33))
    hashes = KVIdentity(bytes.fromhex(namespaces["alpha"])).hash_blocks(prompt, 16)
    # A worker of another model with this identity's blocks: of the same files, for example.
    for name in ("alpha-1", "beta-1"):
        worker = workers[name].record.worker
        await site.router.blocks.publish(BlockUpdate(worker=worker, sequence=1, stored=hashes))
    found = await site.router.blocks.lookup(hashes)
    assert {worker.name for worker in found} == {"alpha-1", "beta-1"}
    body = {"model": "alpha", "prompt": prompt}
    route = (await site.http.post("/v1/route", json=body)).json()
    assert "beta" not in str(route)
    held = {c["worker"]: c["num_held_tokens"] for c in route["decode"]["candidates"]}
    assert held == {"alpha-0": 0, "alpha-1": 32}
    # The same tokens have other hashes under the other model's identity.
    body = {"model": "beta", "prompt": prompt}
    route = (await site.http.post("/v1/route", json=body)).json()
    assert all(c["num_held_tokens"] == 0 for c in route["decode"]["candidates"])


async def test_metrics_name_the_model(site: CatalogueSite) -> None:
    await site.join("alpha-0", "alpha")
    await site.join("beta-0", "beta")
    for _ in range(2):
        await site.ask("beta")

    def value(name: str, model: str, **labels: str) -> float | None:
        return site.registry.get_sample_value(name, {"model_name": model, **labels})

    assert value("baton_generation_tokens_total", "beta") == 4
    assert value("baton_generation_tokens_total", "alpha") in (None, 0)
    assert value("baton_request_success_total", "beta", finished_reason="length") == 2
    assert value("baton_workers_ready", "alpha", role="decode") == 1
    assert value("baton_workers_ready", "gamma", role="decode") == 0


async def test_operators_change_one_model_or_all(site: CatalogueSite) -> None:
    await site.join("alpha-0", "alpha")
    await site.join("beta-0", "beta")
    body = {"path": "/tmp/x"}
    answer = await site.http.post("/update_weights", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"
    assert (await site.http.post("/pause", params={"model": "delta"})).status_code == 404
    assert (await site.http.get("/load", params={"model": "beta"})).json() == {"server_load": 0}
    # Scripted workers have no Lifecycle service: the order reached beta's alone.
    answer = await site.http.post("/pause", params={"model": "beta"})
    assert "beta-0" in answer.text
    assert "alpha-0" not in answer.text
    assert not site.pool("beta").admission.is_held
    info = (await site.http.get("/server_info")).json()
    assert [(p["model"], p["loaded"]) for p in info["pools"]] == [
        ("alpha", True), ("beta", True), ("gamma", False),
    ]  # fmt: skip


async def test_a_held_model_holds_up_no_other(site: CatalogueSite) -> None:
    beta = await site.join("beta-0", "beta")
    await site.join("alpha-0", "alpha")
    site.pool("beta").admission.hold()
    asking = asyncio.create_task(site.ask("beta"))
    assert (await site.ask("alpha")).status_code == 200
    assert not beta.requests
    site.pool("beta").admission.release()
    assert (await asking).status_code == 200


async def test_an_abort_ends_a_request_of_any_model(site: CatalogueSite) -> None:
    beta = await site.join("beta-0", "beta")
    await site.join("alpha-0", "alpha")
    beta.scripts = [Script([Step(token_ids=(70,)), Step(gate=asyncio.Event())])]
    headers = {"x-request-id": "mine"}
    body = {"model": "beta", "prompt": "hello"}
    asking = asyncio.create_task(site.http.post("/v1/completions", json=body, headers=headers))
    await beta.wait_requests(1)
    reply = await site.http.post("/abort_requests", json={"request_ids": ["mine"]})
    assert reply.json()["aborted"] == 1
    assert (await asking).json()["choices"][0]["finish_reason"] == "abort"
    beta.scripts = [say(70, 71)]


async def test_an_adapter_cannot_have_the_name_of_another_model(site: CatalogueSite) -> None:
    fleet = site.pool("alpha").parts.fleet
    for name in ("alpha", "a", "beta", "b"):
        with pytest.raises(InvalidRequestError, match="a model's own name"):
            await fleet.load_adapter(name, "/adapters/sql", replaces=False)


async def test_of_adapters_with_one_name_a_tenant_gets_that_of_its_model(
    site: CatalogueSite,
) -> None:
    for model in ("alpha", "beta"):
        await site.join(f"{model}-0", model)
        adapter = AdapterRef("sql", model.encode().ljust(32), f"/adapters/{model}")
        site.pool(model).parts.adapters.loaded(adapter)
    for headers, parent in (({}, "alpha"), (ONLY_BETA, "beta")):
        card = (await site.http.get("/v1/models/sql", headers=headers)).json()
        assert (card["parent"], card["root"]) == (parent, f"/adapters/{parent}")
    # An order that could mean either is refused, and one that names the model is carried out.
    fleets = AllFleets([site.pool(model) for model in ("alpha", "beta")])
    with pytest.raises(InvalidRequestError, match="one of alpha, beta"):
        await fleets.unload_adapter("sql")
    site.pool("alpha").parts.adapters.unloaded("sql")
    assert (await site.http.get("/v1/models/sql")).json()["parent"] == "beta"
