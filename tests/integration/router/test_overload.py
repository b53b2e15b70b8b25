"""More than the workers can do: who is refused, who waits, and what reaches the workers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry

from services.router.admission.tenant import Tenant
from services.router.doors.app import create_app
from services.router.doors.http_server import HttpServer
from services.router.front import Front
from services.router.openai.catalogue import one_model
from services.router.workers.sessions import MAX_PIECES, AnswerCall
from shared.errors import OverloadedError, RefusalReason
from shared.rpc.retry_budget import BURST, RATIO
from tests.fakes.scripted.decode import Script, Step, never, one_by_one, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from baton.v1 import decode_pb2
    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from tests.integration.router.conftest import Bench

FULL = OverloadedError("no place", reason=RefusalReason.WORKER_FULL)


async def test_who_is_expected_too_late_is_refused_and_no_worker_hears_of_it(
    bench: Bench,
) -> None:
    worker = await bench.add_worker(Script([Step(gate=never())]))
    endpoint = bench.parts.endpoints.of_role(worker.role)[0]
    for _ in range(50):
        endpoint.profile.observe_prefill(5, 0, 400)
    patient = [asyncio.create_task(bench.answer(bench.request())) for _ in range(2)]
    await worker.wait_requests(2)
    for _ in range(20):
        with pytest.raises(OverloadedError) as caught:
            await bench.answer(replace(bench.request(), max_ttft_ms=700))
        assert caught.value.reason is RefusalReason.EXPECTED_TTFT
        assert caught.value.retry_after_s >= 1
    assert len(worker.requests) == 2
    for task in patient:
        task.cancel()
    await asyncio.gather(*patient, return_exceptions=True)


async def test_the_rest_waits_in_the_router_and_goes_out_by_weight(bench: Bench) -> None:
    script, gates = one_by_one(say(5, 6))
    worker = await bench.add_worker(script)
    endpoint = bench.parts.endpoints.of_role(worker.role)[0]
    for _ in range(50):
        endpoint.profile.observe_prefill(5, 0, 10_000)
    tenants = (Tenant(name="heavy", weight=2.0), Tenant(name="light"))
    tasks = []
    for tenant in tenants:
        for i in range(9):
            request = replace(bench.request(), request_id=f"{tenant.name}-{i}", tenant=tenant)
            tasks.append(asyncio.create_task(bench.answer(request)))
            await asyncio.sleep(0)
    # All answers have their first token at once, so what keeps them back are the prompts alone.
    gates[0].set()
    await asyncio.gather(*tasks)
    order = [request.request_id[0] for request in worker.requests]
    assert len(order) == 18
    for n in range(4, 13):
        assert abs(order[:n].count("l") - n / 3) <= 2


async def test_a_worker_that_is_full_is_passed_over(bench: Bench) -> None:
    full = await bench.add_worker(Script([Step(error=FULL)]))
    free = await bench.add_worker(say(5))
    for _ in range(6):
        answer = await bench.answer()
        assert answer.token_ids() == (5,)
    assert len(free.requests) == 6
    # It is not taken for broken: it was asked whenever its turn came.
    assert bench.usable(full)


async def test_full_workers_cause_no_storm_of_retries(bench: Bench) -> None:
    workers = [await bench.add_worker(Script([Step(error=FULL)])) for _ in range(3)]
    num_requests = 200
    for _ in range(num_requests):
        with pytest.raises(OverloadedError) as caught:
            await bench.answer()
        assert caught.value.reason is RefusalReason.WORKER_FULL
    num_asked = sum(len(worker.requests) for worker in workers)
    assert num_asked <= num_requests * (1 + RATIO) + BURST
    assert all(bench.usable(worker) for worker in workers)


GOLD = Tenant(name="gold", max_concurrent_requests=1, max_tokens_per_minute=10_000)


class OfOneTenant:
    """Every request is the same tenant's."""

    def __init__(self, generator: Generator, tenant: Tenant) -> None:
        self._generator = generator
        self._tenant = tenant

    def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        return self._generator.generate(replace(request, tenant=self._tenant))


def _server(bench: Bench, tenant: Tenant) -> HttpServer:
    registry = CollectorRegistry()
    parts = bench.parts
    front = Front(bench.config, parts.router, registry)
    generator = OfOneTenant(front.limited(parts.pool, parts.served), tenant)
    app = create_app(
        one_model(bench.backend(generator)),
        not_ready_because=tuple,
        registry=registry,
        version="0",
        rate_headers=bench.parts.limits.headers,
    )
    return HttpServer(app, drain_grace_s=1)


async def test_answers_and_refusals_say_what_is_left_of_a_tenants_limits(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(token_ids=(5,)), Step(gate=never())]))
    server = _server(bench, GOLD)
    await server.start("127.0.0.1", 0)
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 98, "stream": True}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    async with httpx.AsyncClient() as http:
        async with http.stream("POST", url, json=body) as running:
            assert running.status_code == 200
            assert running.headers["x-ratelimit-limit-requests"] == "1"
            assert running.headers["x-ratelimit-remaining-requests"] == "0"
            assert running.headers["x-ratelimit-limit-tokens"] == "10000"
            assert int(running.headers["x-ratelimit-remaining-tokens"]) <= 9_910
            refused = await http.post(url, json=body)
            assert refused.status_code == 429
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            assert int(refused.headers["retry-after"]) >= 1
            models = await http.get(f"http://127.0.0.1:{server.port}/v1/models")
            assert "x-ratelimit-limit-requests" not in models.headers
        await worker.wait_cancelled(1)
        assert len(worker.requests) == 1
    await server.stop()


async def test_a_client_that_does_not_read_holds_up_nobody_and_fills_no_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    arrived = asyncio.Event()
    push = AnswerCall.push

    def counted(call: AnswerCall, piece: decode_pb2.DecodeResponse) -> None:
        push(call, piece)
        kept.append(len(call._pieces))
        if piece.finish_reason and len(piece.token_ids) > 1:
            arrived.set()

    monkeypatch.setattr(AnswerCall, "push", counted)
    num_tokens, gate = 20_000, asyncio.Event()
    steps = [Step(token_ids=(5,) * 4) for _ in range(num_tokens // 4)]
    steps[1] = replace(steps[1], gate=gate)
    await bench.add_worker(Script(steps), say(6), max_model_len=100_000)
    slow = bench.parts.pipeline.generate(bench.request(max_tokens=num_tokens))
    first = await anext(aiter(slow))
    gate.set()
    for _ in range(5):
        answer = await bench.answer()
        assert answer.token_ids() == (6,)
    await asyncio.wait_for(arrived.wait(), 30)
    assert max(kept) <= MAX_PIECES
    # And it misses nothing.
    tokens = list(first.token_ids)
    async for piece in slow:
        tokens += piece.token_ids
    assert tokens == [5] * num_tokens


ONE_PLACE = {"max_client_stall_s": 0.05, "max_concurrent_requests": 1}


@pytest.mark.parametrize("bench", [ONE_PLACE], indirect=True)
async def test_a_connection_that_nobody_reads_loses_its_place(bench: Bench) -> None:
    """A real socket, whose buffers fill until the server cannot send any more."""
    steps = [Step(token_ids=(70,) * 4096) for _ in range(400)]
    endless = Script([*steps, Step(gate=never())])
    worker = await bench.add_worker(endless, say(6), max_model_len=10**7)
    server = _server(bench, Tenant(name=""))
    await server.start("127.0.0.1", 0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    _, writer = await asyncio.open_connection(sock=client, limit=1024)
    body = (
        b'{"model":"tiny","prompt":"hi","max_tokens":2000000,"stream":true,"return_token_ids":true}'
    )
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await worker.wait_requests(1)
    await worker.wait_cancelled(1)
    async with asyncio.timeout(10):
        # Others find its place, whether or not the connection is still there.
        assert (await bench.answer(bench.request("other"))).token_ids() == (6,)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    await server.stop()
