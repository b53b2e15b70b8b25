"""Real workers and a real router before outsiders, and one tenant before another."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import statistics
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from baton.v1 import transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.router.keys_file import parse_keys
from shared.connector.registry import ConnectorSettings, create
from shared.errors import TransferError
from shared.identity import WorkerId
from shared.kv.block_hash import hash_blocks, root_hash
from shared.kv.memory import KVMemory
from shared.rpc.wire import worker_id_from_wire
from shared.worker.wire import (
    layout_from_wire,
    offer_from_wire,
    ticket_from_wire,
    ticket_to_wire,
)
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.processes import Cluster
from tests.fakes.doors import HEALTH, REFLECTION, bearer, knock, methods, token
from tests.fakes.keys import CLUSTER_TOKEN, cluster_token_file, keys_on_disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from shared.connector.base import Connector, Offer
    from tests.fakes.keys import KeysOnDisk

REFUSED = grpc.StatusCode.UNAUTHENTICATED
NUM_BLOCKS = 4
ME = WorkerId("outsider", "1")


@dataclass(frozen=True, slots=True)
class Guarded:
    """A cluster with keys and a token."""

    cluster: Cluster
    disk: KeysOnDisk

    def ask(self, tenant: str, prompt: Sequence[int], **fields: Any) -> tuple[int, float]:
        """Tokens of the prompt that were in a cache, and seconds to the first token."""
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 2, "temperature": 0}
        # An answer that ends with its first token leaves the decode worker without the prompt.
        body |= {"ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        headers = {"authorization": f"Bearer {self.disk.keys[tenant]}"}
        try:
            started_s = time.perf_counter()
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            events = iter(lambda: response.readline(), b"")
            first = next(line for line in events if line.startswith(b"data: "))
            ttft_s = time.perf_counter() - started_s
            *_, last = (
                json.loads(line[6:]) for line in (first, *events) if line.startswith(b"data: {")
            )
        finally:
            connection.close()
        return int(last["usage"]["prompt_tokens_details"]["cached_tokens"]), ttft_s

    def held(self, tenant: str, prompt: Sequence[int]) -> int:
        """Blocks of the prompt that the router's index knows, asked as `tenant`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.http_port, timeout=60)
        headers = {"authorization": f"Bearer {self.disk.keys[tenant]}"}
        try:
            body = json.dumps({"model": "tiny", "prompt": list(prompt), "max_tokens": 1})
            connection.request("POST", "/v1/route", body, headers)
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            return max(
                worker["num_held_tokens"] for worker in json.loads(text)["decode"]["candidates"]
            )
        finally:
            connection.close()


@pytest.fixture(scope="module")
def guarded(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    disk = keys_on_disk(folder)
    disk.add("ops2", "operator = true")
    cluster = Cluster(
        checkpoint,
        folder,
        router_flags=("--api-keys", str(disk.path), "--log-level", "debug"),
        token=(cluster_token_file(folder), CLUSTER_TOKEN),
    )
    try:
        flags = (*ENGINE_FLAGS, "--connectors", "zmq", "--log-level", "debug")
        cluster.add_worker("prefill", "prefill-0", *flags)
        cluster.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        cluster.wait_ready()
        yield Guarded(cluster, disk)
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_every_method_of_a_worker_is_closed_to_outsiders(guarded: Guarded, name: str) -> None:
    outsiders = {
        "nobody": [],
        "a client": bearer(guarded.disk.keys["ops"]),
        "a client's key as token": token(guarded.disk.keys["ops"]),
        "wrong token": token("x" * len(CLUSTER_TOKEN)),
        "two tokens": [*token(CLUSTER_TOKEN), *token("x" * 40)],
        "token as key": bearer(CLUSTER_TOKEN),
    }
    with grpc.insecure_channel(guarded.cluster.addresses[name]) as channel:
        for method in (*methods(), REFLECTION, "/none.None/None"):
            for who, metadata in outsiders.items():
                assert knock(channel, method, metadata) is REFUSED, (method, who)
        assert knock(channel, HEALTH) is grpc.StatusCode.OK
        for method in ("/baton.v1.Worker/GetInfo", "/baton.v1.Worker/GetLoad"):
            assert knock(channel, method, token(CLUSTER_TOKEN)) is grpc.StatusCode.OK, method
    guarded.cluster.wait_idle()


def test_two_tenants_with_the_same_prompt_share_no_block(guarded: Guarded) -> None:
    prompt = prompt_of(6 * BLOCK_SIZE + 3, seed=61)
    assert guarded.ask("ops", prompt)[0] == 0
    assert guarded.ask("ops", prompt)[0] == 6 * BLOCK_SIZE
    for salt in ({}, {"cache_salt": "x"}, {"cache_salt": "ops"}):
        assert guarded.ask("ops2", prompt, **salt)[0] == 0, salt
    # The same tenant divides its own further.
    assert guarded.ask("ops", prompt, cache_salt="x")[0] == 0
    fresh = prompt_of(6 * BLOCK_SIZE, seed=62)
    guarded.ask("ops", fresh)
    # The index is told a moment later.
    deadline_s = time.monotonic() + 20
    while not guarded.held("ops", fresh):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert guarded.held("ops2", fresh) == 0


def test_a_tenant_cannot_tell_by_time_what_another_has_asked(guarded: Guarded) -> None:
    """Permutation test on the rank sums of TTFTs, in an order of chance: no clock of this machine
    has to be fast, both samples only have to be of one distribution. Its positive control shows
    that the same test finds a prefix which the tenant did ask for.
    """
    rng = random.Random(5)
    num_each = 14
    trials = [True, False] * num_each
    rng.shuffle(trials)
    spied: dict[bool, list[float]] = {True: [], False: []}
    own: dict[bool, list[float]] = {True: [], False: []}
    for number, asked_before in enumerate(trials):
        prompt = prompt_of(60 * BLOCK_SIZE, seed=1000 + number)
        # In either case somebody has just been served, so that only the prefix differs.
        unrelated = prompt_of(60 * BLOCK_SIZE, seed=2000 + number)
        guarded.ask("a", prompt if asked_before else unrelated)
        num_cached, ttft_s = guarded.ask("b", prompt)
        assert num_cached == 0
        spied[asked_before].append(ttft_s)
        # b has it now; another prompt was not asked by anybody.
        num_cached, ttft_s = guarded.ask("b", prompt)
        assert num_cached > 0
        own[True].append(ttft_s)
        own[False].append(spied[asked_before][-1])
    assert probability_of_chance(spied[True], spied[False], rng) > 2e-4
    assert probability_of_chance(own[True], own[False], rng) < 1e-3


def probability_of_chance(ones: list[float], others: list[float], rng: random.Random) -> float:
    """How often a random split of all values has rank sums as far apart, on either side."""
    values = np.argsort(np.argsort([*ones, *others])).astype(float)
    expected = statistics.fmean(values) * len(ones)
    observed = abs(values[: len(ones)].sum() - expected)
    generator = np.random.default_rng(rng.getrandbits(32))
    num_as_far = sum(
        abs(generator.permutation(values)[: len(ones)].sum() - expected) >= observed
        for _ in range(20_000)
    )
    return (num_as_far + 1) / 20_001


def test_text_and_random_bytes_get_nothing_from_any_port(guarded: Guarded) -> None:
    """Plain TCP on the gRPC ports and the connectors' own: nothing breaks, nothing is held."""
    cluster = guarded.cluster
    ports = [int(address.rpartition(":")[2]) for address in cluster.addresses.values()]
    ports += [int(offer.address.rpartition(":")[2]) for offer in offers(guarded).values()]
    for port in (*ports, cluster.grpc_port):
        for data in (b"GET / HTTP/1.1\r\n\r\n", random.Random(3).randbytes(5000), b"\x00" * 64):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(data)
    cluster.wait_idle()
    assert guarded.ask("a", prompt_of(40, seed=63))[0] == 0


def offers(guarded: Guarded) -> dict[str, Offer]:
    """Where each worker's connector listens."""
    return {
        name: offer_from_wire(info_of(guarded, name).peer.offers[0])
        for name in guarded.cluster.addresses
    }


def info_of(guarded: Guarded, name: str) -> worker_pb2.GetInfoResponse:
    with grpc.insecure_channel(guarded.cluster.addresses[name]) as channel:
        return worker_pb2_grpc.WorkerStub(channel).GetInfo(
            worker_pb2.GetInfoRequest(), timeout=10, metadata=token(CLUSTER_TOKEN)
        )


@asynccontextmanager
async def connector_of(
    guarded: Guarded, tmp_path: Any
) -> AsyncIterator[tuple[Connector, KVMemory]]:
    """A process beside the workers, with memory of the same layout."""
    layout = layout_from_wire(info_of(guarded, "decode-0").peer.layout)
    memory = KVMemory(layout, 2 * NUM_BLOCKS)
    settings = ConnectorSettings(runtime_dir=tmp_path / "run")
    (connector,) = create(["zmq"], worker=ME, memory=memory, settings=settings)
    await connector.start()
    try:
        yield connector, memory
    finally:
        await connector.close()
        memory.close()


async def send(
    guarded: Guarded, name: str, ticket: transfer_pb2.TransferTicket, hashes: Sequence[bytes]
) -> transfer_pb2.SendResponse:
    """Ask a worker to fill a ticket with what it holds."""
    async with grpc.aio.insecure_channel(guarded.cluster.addresses[name]) as channel:
        stub: transfer_pb2_grpc.TransferAsyncStub = transfer_pb2_grpc.TransferStub(channel)
        request = transfer_pb2.SendRequest(ticket=ticket, block_hashes=hashes)
        return await stub.Send(request, timeout=20, metadata=token(CLUSTER_TOKEN))


def held_hashes(guarded: Guarded, seed: int) -> list[bytes]:
    """Of a prompt that both workers hold, under the salt that nobody outside can compute."""
    prompt = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=seed)
    guarded.ask("a", prompt, max_tokens=1)
    guarded.cluster.wait_idle()
    (caller,) = (
        stored.caller
        for stored in parse_keys(guarded.disk.path.read_bytes()).values()
        if stored.caller.tenant.name == "a"
    )
    namespace = bytes.fromhex(info_of(guarded, "decode-0").peer.namespace)
    return hash_blocks(root_hash(namespace, cache_salt=caller.cache_salt(None)), prompt, BLOCK_SIZE)


async def test_a_stolen_or_replayed_ticket_brings_nothing(guarded: Guarded, tmp_path: Any) -> None:
    hashes = await asyncio.to_thread(held_hashes, guarded, 64)
    async with connector_of(guarded, tmp_path) as (connector, memory):
        sender = worker_id_from_wire(info_of(guarded, "prefill-0").peer.worker)
        inbound = connector.open(request_id="r", sender=sender, blocks=range(NUM_BLOCKS))
        ticket = ticket_to_wire(inbound.ticket)
        # Stolen: another worker shows it, even one of the cluster that holds the same blocks.
        with pytest.raises(grpc.aio.AioRpcError):
            await send(guarded, "decode-0", ticket, hashes)
        as_if_mine = transfer_pb2.TransferTicket()
        as_if_mine.CopyFrom(ticket)
        as_if_mine.sender.CopyFrom(info_of(guarded, "decode-0").peer.worker)
        with pytest.raises(grpc.aio.AioRpcError):
            await send(guarded, "decode-0", as_if_mine, hashes)
        assert not memory.blocks[:NUM_BLOCKS].any()
        # The one that it was made for fills it, once.
        arrival = asyncio.create_task(inbound.wait(20))
        sent = await send(guarded, "prefill-0", ticket, hashes)
        assert (await arrival).digest == sent.digest
        memory.blocks[:] = 7
        for name in ("prefill-0", "decode-0"):
            with pytest.raises(grpc.aio.AioRpcError):
                await send(guarded, name, ticket, hashes)
        assert (memory.blocks == 7).all()
        assert sum(connector.refusals.values()) > 0
    await asyncio.to_thread(guarded.cluster.wait_idle)


async def test_an_invented_ticket_writes_nothing_into_a_worker(
    guarded: Guarded, tmp_path: Any
) -> None:
    """An outsider reaches a connector's port, and has no ticket of that worker's."""
    async with connector_of(guarded, tmp_path) as (connector, memory):
        memory.blocks[:] = 9
        own = connector.open(request_id="r", sender=ME, blocks=range(NUM_BLOCKS)).ticket
        info = info_of(guarded, "decode-0")
        invented = ticket_to_wire(own)
        invented.address = info.peer.offers[0].address
        invented.receiver.CopyFrom(info.peer.worker)

        async def push() -> None:
            outbound = await connector.connect(ticket_from_wire(invented), 10)
            try:
                await outbound.push(0, range(NUM_BLOCKS))
                await outbound.finish(10)
            finally:
                await outbound.abort()

        with pytest.raises(TransferError, match="unknown_ticket"):
            await push()
    await asyncio.to_thread(guarded.cluster.wait_idle)


def test_no_secret_is_in_any_log(guarded: Guarded) -> None:
    prompt = prompt_of(20, seed=65)
    guarded.ask("a", prompt)
    for process in guarded.cluster.processes:
        log = process.log.read_text(errors="replace")
        assert log
        for secret in (*(key[20:] for key in guarded.disk.keys.values()), CLUSTER_TOKEN):
            assert secret not in log, process.name
