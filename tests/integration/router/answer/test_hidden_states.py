"""Rows of hidden states on their way through the router: beside their tokens, in bounded pieces."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from baton.v1 import common_pb2, decode_pb2, router_pb2, router_pb2_grpc
from services.router.doors.app import create_app
from services.router.grpc.server import RouterServicer
from services.router.openai.catalogue import one_model
from services.router.workers.pieces import MAX_HIDDEN_BYTES
from services.router.workers.sessions import AnswerCall
from shared.rpc.server import MAX_MESSAGE_BYTES, RpcServer
from tests.fakes.scripted.decode import Script, Step, position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.router.conftest import Answer, Bench

ASKS: dict[str, Any] = {"return_hidden_states": True, "max_tokens": 99}
#: Four of these rows fill a piece.
LARGE = MAX_HIDDEN_BYTES // 4


def row_of(number: int, num_bytes: int) -> bytes:
    return number.to_bytes(4, "little") * (num_bytes // 4)


def with_rows(token_ids: Sequence[int], num_bytes: int = 4, **rest: Any) -> Script:
    """An answer of these tokens, each with a row that is made of its place."""
    steps = [
        Step(
            token_ids=(token_id,),
            extra=decode_pb2.DecodeResponse(
                hidden_states=[row_of(place, num_bytes)],
                logprobs=[position(token_id, -1.0, {token_id: -1.0})],
            ),
        )
        for place, token_id in enumerate(token_ids)
    ]
    return Script(steps, **rest)


def places(rows: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(row[:4], "little") for row in rows]


def rows(answer: Answer, index: int = 0) -> list[int]:
    return [i for p in answer.pieces if p.index == index for i in places(p.hidden_states)]


async def test_tokens_behind_a_stop_string_take_their_rows_with_them(bench: Bench) -> None:
    ids = bench.ids("this and that")
    many = with_rows(ids)
    one = Script([Step(token_ids=ids, extra=decode_pb2.DecodeResponse())])
    extra = one.steps[0].extra
    assert extra is not None
    extra.hidden_states.extend(row_of(i, 4) for i in range(len(ids)))
    for script in (many, one):
        worker = await bench.add_worker(script)
        answer = await bench.answer(stop=("and",), **ASKS)
        assert answer.text() == "this "
        assert rows(answer) == list(range(len(answer.token_ids())))
        assert 5 < len(answer.token_ids()) < len(ids)
        await worker.die()


@pytest.mark.parametrize(
    "bench", [{"tool_call_parser": "hermes", "reasoning_parser": "think"}], indirect=True
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_parsed_chat_has_the_rows_of_all_tokens(bench: Bench, stream: bool) -> None:
    """Those of marks and calls too, which are no text."""
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    ids = bench.parts.tokenizer.encode(f"<think>so</think>well {call}", add_special_tokens=False)
    await bench.add_worker(with_rows(ids))
    app = create_app(
        one_model(replace(bench.backend(), formats=bench.parts.formats)),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [tool],
        "stream": stream,
        "return_token_ids": True,
        **ASKS,
    }
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        reply = await http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    if stream:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    else:
        choices = reply.json()["choices"]
    assert "tool_calls" in reply.text
    parts = [choice["hidden_states"] for choice in choices if choice.get("hidden_states")]
    found = b"".join(base64.b64decode(part["data"]) for part in parts)
    assert [part["shape"][1] for part in parts] == [1] * len(parts)
    assert places([found[i : i + 4] for i in range(0, len(found), 4)]) == list(range(len(ids)))
    assert [i for choice in choices for i in choice.get("token_ids") or ()] == list(ids)


async def test_a_slow_reader_misses_no_row_and_gets_no_large_piece(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, push = asyncio.Event(), AnswerCall.push

    def watched(call: AnswerCall, piece: decode_pb2.DecodeResponse) -> None:
        push(call, piece)
        if piece.finish_reason:
            arrived.set()

    monkeypatch.setattr(AnswerCall, "push", watched)
    await bench.add_worker(with_rows([5] * 40, LARGE))
    slow = bench.parts.pipeline.generate(bench.request(**ASKS))
    pieces = [await anext(aiter(slow))]
    await asyncio.wait_for(arrived.wait(), 30)
    pieces += [piece async for piece in slow]
    assert [i for piece in pieces for i in places(piece.hidden_states)] == list(range(40))
    assert all(len(piece.hidden_states) == len(piece.token_ids) for piece in pieces)
    assert max(len(piece.hidden_states) for piece in pieces) <= 5
    assert len(pieces) < 40


async def test_pieces_of_many_tokens_do_not_wait_when_they_are_full(bench: Bench) -> None:
    await bench.add_worker(with_rows([5] * 40, LARGE))
    answer = await bench.answer(stream_interval=30, **ASKS)
    assert rows(answer) == list(range(40))
    assert max(len(piece.hidden_states) for piece in answer.pieces) <= 8


async def test_the_best_answer_fits_grpc_messages(bench: Bench) -> None:
    """It is one piece, of more bytes than a message may have."""
    ids = bench.ids("the whole of it")
    num_rows = MAX_MESSAGE_BYTES // LARGE + 9
    ids = (*ids, *bench.ids("x") * (num_rows - len(ids)))
    worker = await bench.add_worker(with_rows(ids, LARGE))
    worker.scripts *= 2
    server = RpcServer(["baton.v1.Router"])
    servicer = RouterServicer(
        one_model(bench.backend()),
    )
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(text="hello"),
        params=router_pb2.GenerationParams(best_of=2, logprobs=0, **ASKS),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        found = [each async for each in router_pb2_grpc.RouterStub(channel).Generate(request)]
    await server.stop(0)
    assert [i for each in found for i in places(each.hidden_states)] == list(range(num_rows))
    assert [i for each in found for i in each.token_ids] == list(ids)
    assert sum(len(each.details) for each in found) == num_rows
    assert len(found) > 1
    *before, last = found
    assert last.finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert not any(each.finish_reason or each.HasField("usage") for each in before)
    assert "".join(each.text for each in found).startswith("the whole of it")
