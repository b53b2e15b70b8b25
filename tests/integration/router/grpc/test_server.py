"""The gRPC front door: real client, real server, scripted worker."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, decode_pb2, router_pb2, router_pb2_grpc
from services.router.grpc.server import RouterServicer
from services.router.openai.catalogue import one_model
from shared.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    NoWorkerError,
)
from shared.generation.limits import RequestLimits
from shared.rpc.server import RpcServer
from shared.rpc.status import from_rpc_error
from tests.fakes.processes.call_threads import threads_of
from tests.fakes.scripted.decode import Script, Step, never, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.router.conftest import Bench


@pytest.fixture
async def stub(bench: Bench) -> AsyncIterator[router_pb2_grpc.RouterStub]:
    server = RpcServer(["baton.v1.Router"])
    servicer = RouterServicer(one_model(bench.backend()))
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield router_pb2_grpc.RouterStub(channel)
    await server.stop(0)


async def _text(call: AsyncIterator[router_pb2.GenerateResponse]) -> str:
    return "".join([response.text async for response in call])


async def test_a_text_prompt_is_continued(bench: Bench, stub: router_pb2_grpc.RouterStub) -> None:
    worker = await bench.add_worker(say(*bench.ids("world")))
    request = router_pb2.GenerateRequest(
        request_id="mine",
        prompt=router_pb2.Prompt(text="hello"),
        params=router_pb2.GenerationParams(
            max_tokens=7, temperature=0.5, stop=["ld"], ignore_eos=True, seed=3, n=1
        ),
        priority=4,
    )
    responses = [response async for response in stub.Generate(request)]
    assert "".join(r.text for r in responses) == "wor"
    assert {r.request_id for r in responses} == {"mine"}
    last = responses[-1]
    assert last.finish_reason == common_pb2.FINISH_REASON_STOP
    assert last.stop_string == "ld"
    assert last.usage.completion_tokens == 5
    assert last.timings.decode_worker == worker.name
    (sent,) = worker.requests
    assert tuple(sent.token_ids) == tuple(bench.parts.tokenizer.encode("hello"))
    assert (sent.sampling.max_tokens, sent.sampling.temperature) == (7, 0.5)
    assert (sent.sampling.ignore_eos, sent.sampling.seed, sent.priority) == (True, 3, 4)


async def test_a_long_text_is_tokenised_as_well(
    bench: Bench, stub: router_pb2_grpc.RouterStub
) -> None:
    worker = await bench.add_worker(max_model_len=100_000)
    text = "hello " * 2000
    await _text(stub.Generate(router_pb2.GenerateRequest(prompt=router_pb2.Prompt(text=text))))
    assert tuple(worker.requests[0].token_ids) == tuple(bench.parts.tokenizer.encode(text))


async def test_a_conversation_goes_through_the_template(
    bench: Bench, stub: router_pb2_grpc.RouterStub
) -> None:
    worker = await bench.add_worker(say(*bench.ids("hi")))
    messages = [router_pb2.ChatMessage(role="user", content="hello")]
    assert await _text(stub.Chat(router_pb2.ChatRequest(messages=messages))) == "hi"
    prompt = bench.parts.tokenizer.decode(worker.requests[0].token_ids, skip_special_tokens=False)
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    messages.append(router_pb2.ChatMessage(role="assistant", content="well"))
    request = router_pb2.ChatRequest(messages=messages, continue_final_message=True)
    await _text(stub.Chat(request))
    prompt = bench.parts.tokenizer.decode(worker.requests[1].token_ids, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nwell")


async def test_token_details_cross_the_wire(bench: Bench, stub: router_pb2_grpc.RouterStub) -> None:
    (a,) = bench.ids("a")
    position = common_pb2.PositionLogprobs(
        chosen=common_pb2.TokenLogprob(token_id=a, logprob=-0.5, rank=1),
        top=[common_pb2.TokenLogprob(token_id=a, logprob=-0.5, rank=1)],
    )
    script = say(a)
    message = decode_pb2.DecodeResponse(
        logprobs=[position],
        prompt_logprobs=common_pb2.PromptLogprobs(
            positions=[common_pb2.PositionLogprobs(), position]
        ),
    )
    script.steps = [Step(token_ids=(a,), extra=message)]
    await bench.add_worker(script)
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=[1, 2])),
        params=router_pb2.GenerationParams(logprobs=1, prompt_logprobs=1),
    )
    (response,) = [r async for r in stub.Generate(request)]
    (detail,) = response.details
    assert (detail.text, detail.utf8, list(detail.top_texts)) == ("a", b"a", ["a"])
    assert detail.logprobs == position
    assert [d.HasField("logprobs") for d in response.prompt_details] == [False, True]


async def test_details_of_a_long_prompt_are_written_in_a_thread(
    bench: Bench, stub: router_pb2_grpc.RouterStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = common_pb2.TokenLogprob(token_id=5, logprob=-0.5, rank=1)
    position = common_pb2.PositionLogprobs(chosen=candidate, top=[candidate] * 20)
    message = decode_pb2.DecodeResponse(
        prompt_logprobs=common_pb2.PromptLogprobs(positions=[position] * 100)
    )
    await bench.add_worker(Script([Step(token_ids=(5,), extra=message)]))
    threads = threads_of(monkeypatch, "services.router.grpc.answers.piece_to_wire")
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=[1, 2])),
        params=router_pb2.GenerationParams(prompt_logprobs=20),
    )
    (response,) = [r async for r in stub.Generate(request)]
    assert len(response.prompt_details) == 100
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("place", ["check_texts", "read_chat", "bound_thinking"])
async def test_a_long_message_is_read_in_a_thread(
    bench: Bench,
    stub: router_pb2_grpc.RouterStub,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    await bench.add_worker(max_model_len=4000)
    threads = threads_of(monkeypatch, f"services.router.grpc.model_calls.{place}")
    text = "a" * 2000
    if place != "read_chat":
        prompt = router_pb2.Prompt(text=text)
        params = router_pb2.GenerationParams(max_tokens=1)
        await _text(stub.Generate(router_pb2.GenerateRequest(prompt=prompt, params=params)))
    else:
        messages = [router_pb2.ChatMessage(role="user", content=text)]
        await _text(stub.Chat(router_pb2.ChatRequest(messages=messages)))
    assert threads
    assert threading.main_thread() not in threads


async def test_models_are_listed(bench: Bench, stub: router_pb2_grpc.RouterStub) -> None:
    await bench.add_worker(max_model_len=77)
    response = await stub.ListModels(router_pb2.ListModelsRequest())
    assert [(m.id, m.max_model_len) for m in response.models] == [("tiny", 77)]


async def test_errors_keep_their_kind(bench: Bench, stub: router_pb2_grpc.RouterStub) -> None:
    prompt = router_pb2.Prompt(text="x")

    async def error_of(request: router_pb2.GenerateRequest) -> Exception:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _text(stub.Generate(request))
        return from_rpc_error(caught.value, peer="router")

    assert isinstance(await error_of(router_pb2.GenerateRequest(prompt=prompt)), NoWorkerError)
    await bench.add_worker()
    other = router_pb2.GenerateRequest(prompt=prompt, model="other")
    assert isinstance(await error_of(other), ModelNotFoundError)
    for request, param in (
        (router_pb2.GenerateRequest(), "prompt"),
        (router_pb2.GenerateRequest(prompt=prompt, request_id="x" * 200), "request_id"),
        (
            router_pb2.GenerateRequest(
                prompt=prompt, params=router_pb2.GenerationParams(top_p=1.5)
            ),
            "top_p",
        ),
        (
            router_pb2.GenerateRequest(
                prompt=prompt, params=router_pb2.GenerationParams(temperature=2.5)
            ),
            "temperature",
        ),
    ):
        error = await error_of(request)
        assert isinstance(error, InvalidRequestError)
        assert error.param == param
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _text(stub.Chat(router_pb2.ChatRequest()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_goes_away_cancels_the_worker(
    bench: Bench, stub: router_pb2_grpc.RouterStub
) -> None:
    worker = await bench.add_worker(Script([Step(token_ids=(70,)), Step(gate=never())]))
    call = stub.Generate(router_pb2.GenerateRequest(prompt=router_pb2.Prompt(text="x")))
    await call.read()
    call.cancel()
    await worker.wait_cancelled()


@pytest.mark.parametrize("method", ["Generate", "Chat", "ListModels"])
async def test_bytes_that_are_no_message_are_refused(bench: Bench, method: str) -> None:
    """They used to be UNKNOWN, with a trace in the log for each."""
    server = RpcServer(["baton.v1.Router"])
    servicer = RouterServicer(one_model(bench.backend()))
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_stream(f"/baton.v1.Router/{method}")(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    await server.stop(0)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_limit_is_refused(bench: Bench) -> None:
    server = RpcServer(["baton.v1.Router"], max_message_bytes=1000)
    limits = RequestLimits(max_prompt_chars=100, max_n=2)
    servicer = RouterServicer(one_model(replace(bench.backend(), limits=limits)))
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    refused = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        for name, text, n in (("message", "a" * 2000, 1), ("prompt", "a" * 200, 1), ("n", "a", 3)):
            request = router_pb2.GenerateRequest(
                prompt=router_pb2.Prompt(text=text), params=router_pb2.GenerationParams(n=n)
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(request).read()
            refused[name] = (caught.value.code(), dict(caught.value.trailing_metadata() or ()))
    await server.stop(0)
    exhausted, invalid = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT
    assert [code for code, _ in refused.values()] == [exhausted, exhausted, invalid]
    assert [refused[name][1]["baton-param"] for name in ("prompt", "n")] == ["prompt", "n"]
