"""gRPC: random bytes as messages, and valid messages with extreme values, over real servers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import (
    common_pb2,
    decode_pb2,
    prefill_pb2,
    transfer_pb2,
    worker_pb2,
)
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.rpc.wire import worker_id_to_wire
from tests.fakes.worker.live_worker import live_worker
from tests.fuzz.cases import open_site, profile
from tests.fuzz.mutation import change, fill, mutate
from tests.fuzz.router_messages import DIRECTORY, HASHES, PUBLIC, WORKER
from tests.fuzz.router_site import start_router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from tests.fakes.worker.live_worker import LiveWorker
    from tests.fuzz.cases import Site
    from tests.fuzz.router_site import RouterSite

#: Never an answer to what a caller sends: these say that the server is at fault.
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
TIMEOUT_S = 3.0


async def call(channel: grpc.aio.Channel, method: str, data: bytes) -> grpc.StatusCode:
    """How a call ends. Every method is called as if it streamed, which unary ones allow."""
    stream = channel.unary_stream(f"/baton.v1.{method}")(data, timeout=TIMEOUT_S)
    async for _ in stream:
        pass
    return grpc.StatusCode.OK


async def outcome(channel: grpc.aio.Channel, method: str, data: bytes) -> str:
    """Empty, or what is wrong with the answer."""
    try:
        await call(channel, method, data)
    except grpc.aio.AioRpcError as error:
        # A message that cannot be parsed never reaches a servicer; gRPC says INTERNAL.
        parsed = "deserializing" not in (error.details() or "")
        if error.code() in FAULTS and parsed:
            return f"{method}: {error.code()} {error.details()} {data!r}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{method}: hangs {data!r}"
    return ""


def messages(
    random: Random, valid: tuple[tuple[str, Message], ...], num: int
) -> list[tuple[str, bytes]]:
    """Bytes, messages of random fields, and valid ones with some fields changed."""
    made = []
    others = tuple(message.SerializeToString() for _, message in valid)
    for _ in range(num):
        method, message = random.choice(valid)
        match random.randrange(6):
            case 0:
                data = mutate(random, message.SerializeToString(), others)
            case 1:
                data = fill(random, type(message)()).SerializeToString()
            case _:
                copied = type(message)()
                copied.CopyFrom(message)
                data = (
                    change(random, copied).SerializeToString() if copied.DESCRIPTOR.fields else b""
                )
        made.append((method, data))
    return made


async def ask(channel: grpc.aio.Channel, sent: list[tuple[str, bytes]]) -> list[str]:
    return [p for p in await asyncio.gather(*(outcome(channel, *each) for each in sent)) if p]


@pytest.fixture(scope="module")
def router(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Site, RouterSite, grpc.aio.Channel]]:
    with open_site("grpc: router") as site:
        started = site.run(start_router(tmp_path_factory.mktemp("router")))
        channel = site.run(_channel(f"127.0.0.1:{started.grpc_port}"))
        try:
            yield site, started, channel
            site.check_growth()
            site.run(_leave(started))
            site.run(started.settle())
            assert not site.run(ask(channel, [("Router/Generate", _valid(PUBLIC[0]))]))
        finally:
            site.run(channel.close())
            site.run(started.stack.aclose())


@profile(40, 1500)
@given(st.integers(0, 2**64 - 1))
def test_router(router: tuple[Site, RouterSite, grpc.aio.Channel], seed: int) -> None:
    site, _, channel = router
    sent = messages(Random(seed), PUBLIC, 10)
    assert not site.case(partial(ask, channel, sent), len(sent))


@profile(40, 1200)
@given(st.integers(0, 2**64 - 1))
def test_directory(router: tuple[Site, RouterSite, grpc.aio.Channel], seed: int) -> None:
    site, started, channel = router
    sent = messages(Random(seed), DIRECTORY, 10)
    # Whatever registers must not keep the good worker from being found.
    sent = [(m, d) for m, d in sent if b"decode-0" not in d]
    assert not site.case(partial(ask, channel, sent), len(sent), "grpc: directory")
    site.run(_leave(started))
    assert not site.run(ask(channel, [("Router/Generate", _valid(PUBLIC[1]))]))


async def _leave(started: RouterSite) -> None:
    """Everyone but the good worker leaves, as their leases would have them do."""
    for event in await started.parts.registry.workers():
        if event.record.worker != started.worker.record.worker:
            await started.parts.registry.deregister(event.record.worker)


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Site, LiveWorker, grpc.aio.Channel]]:
    folder = tmp_path_factory.mktemp("worker")
    model = folder / "tiny"
    write_random_checkpoint(model, CheckpointSpec(num_layers=1, vocab_size=300))
    runtime_dir = folder / "run"
    runtime_dir.mkdir(mode=0o700)
    with open_site("grpc: worker") as site:
        stack = AsyncExitStack()
        live = site.run(stack.enter_async_context(live_worker(model, "w", runtime_dir=runtime_dir)))
        channel = site.run(_channel(live.address))
        try:
            before = site.run(live.ask([1, 2, 3], request_id="before")).token_ids
            yield site, live, channel
            site.check_growth()
            site.run(_drained(live))
            assert site.run(live.ask([1, 2, 3], request_id="after")).token_ids == before
        finally:
            site.run(channel.close())
            site.run(stack.aclose())


def worker_messages(live: LiveWorker) -> tuple[tuple[str, Message], ...]:
    own = worker_id_to_wire(live.parts.worker)
    sampling = common_pb2.SamplingParams(max_tokens=2, temperature=0)
    ticket = transfer_pb2.TransferTicket(
        transfer_id=bytes(16),
        connector="shm",
        address="/nowhere",
        request_id="r",
        sender=own,
        receiver=WORKER,
        num_blocks=1,
        layout=live.parts.peer_info.layout,
    )
    source = common_pb2.PrefixSource(worker=WORKER, address="127.0.0.1:1", num_blocks=2)
    ask_ = decode_pb2.DecodeRequest(request_id="r", token_ids=[1, 2, 3], sampling=sampling)
    return (
        ("Decode/Generate", ask_),
        (
            "Decode/Generate",
            decode_pb2.DecodeRequest(
                request_id="r",
                token_ids=list(range(40)),
                sampling=sampling,
                num_resumed_tokens=1,
                prefix_sources=[source],
                prefill_candidates=[
                    decode_pb2.PrefillCandidate(worker=WORKER, address="127.0.0.1:1")
                ],
            ),
        ),
        ("Decode/Session", decode_pb2.SessionRequest(answer_id=1, start=ask_)),
        (
            "Prefill/Prefill",
            prefill_pb2.PrefillRequest(
                request_id="r", token_ids=[1, 2, 3], sampling=sampling, ticket=ticket
            ),
        ),
        ("Transfer/Handshake", transfer_pb2.HandshakeRequest(peer=live.parts.peer_info)),
        ("Transfer/Lookup", transfer_pb2.LookupRequest(block_hashes=HASHES)),
        (
            "Transfer/Send",
            transfer_pb2.SendRequest(request_id="r", block_hashes=HASHES[:1], ticket=ticket),
        ),
        ("Worker/GetInfo", worker_pb2.GetInfoRequest()),
        ("Worker/GetLoad", worker_pb2.GetLoadRequest()),
        ("Worker/ResetPrefixCache", worker_pb2.ResetPrefixCacheRequest()),
    )


@profile(40, 1500)
@given(st.integers(0, 2**64 - 1))
def test_worker(worker: tuple[Site, LiveWorker, grpc.aio.Channel], seed: int) -> None:
    site, live, channel = worker
    sent = messages(Random(seed), worker_messages(live), 10)
    assert not site.case(partial(ask, channel, sent), len(sent))


async def _drained(live: LiveWorker) -> None:
    """Nothing runs, waits, is held or open any more; every block is free or only cached."""
    async with asyncio.timeout(10):
        while True:
            load = await live.load()
            busy = (load.num_running, load.num_waiting, load.num_receiving, load.num_held)
            if not any(busy) and load.num_open_transfers == 0:
                break
            await asyncio.sleep(0.05)
    await live.forget()
    load = await live.load()
    assert load.num_free_blocks == load.num_blocks


async def _channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


def _valid(pair: tuple[str, Message]) -> bytes:
    return pair[1].SerializeToString()
