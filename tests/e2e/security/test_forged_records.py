"""Writing to Redis is not membership: no address that a forger wrote is called."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cli.doctor.cluster import check_cluster
from cli.security.access import Access
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.seal import MAX_AGE_S, RecordSeals
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.identity import WorkerId
from shared.rpc.auth import TOKEN_KEY, ClusterToken
from tests.e2e.processes import Cluster
from tests.fakes.directory.redis_server import RedisServer
from tests.suites.directory import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.directory.base import WorkerRecord

TOKEN, OTHER = "t" * 64, "o" * 64
LEASE_S = 3600.0
WAIT_S = 30.0
FORGED = ("unsealed", "other-token", "other-record", "replayed")


class Listener(grpc.GenericRpcHandler):
    """A gRPC server that writes down who calls it and what they show, and answers nothing."""

    def __init__(self) -> None:
        self.tokens: list[str | bytes | None] = []
        self.called = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(2), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> None:
        shown = dict(handler_call_details.invocation_metadata)
        self.tokens.append(shown.get(TOKEN_KEY))
        self.called.set()

    def stop(self) -> None:
        self._server.stop(0).wait()


@pytest.fixture
def listeners() -> Iterator[dict[str, Listener]]:
    found = {name: Listener() for name in ("genuine", *FORGED)}
    yield found
    for listener in found.values():
        listener.stop()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def claim(name: str, address: str, model: str) -> WorkerRecord:
    return replace(record(WorkerId(name, "1")), address=address, model=model)


def seals_of(folder: Path, token: str, *, age_s: float = 0.0) -> RecordSeals:
    path = folder / f"token-{token[0]}"
    path.write_text(token)
    return RecordSeals(ClusterToken(path), clock=lambda: time.time() - age_s)


async def plant(url: str, folder: Path, listeners: dict[str, Listener], model: str) -> None:
    """One record that a member has written, and four that a forger has."""
    old = seals_of(folder, TOKEN, age_s=MAX_AGE_S + 60)
    for name, seals in {
        "unsealed": None,
        "other-token": seals_of(folder, OTHER),
        "other-record": None,
        "replayed": old,
        "genuine": seals_of(folder, TOKEN),
    }.items():
        store = RedisStore(open_client(url))
        await RedisDirectory(store, seals=seals).register(
            claim(name, listeners[name].address, model), LEASE_S
        )
        await store.close()


def test_a_forged_record_is_shown_no_token(
    checkpoint: Path, tmp_path: Path, redis_server: RedisServer, listeners: dict[str, Listener]
) -> None:
    seals_of(tmp_path, TOKEN)
    cluster = Cluster(
        checkpoint, tmp_path, redis_url=redis_server.url, token=(tmp_path / "token-t", TOKEN)
    )
    try:
        asyncio.run(plant(redis_server.url, tmp_path, listeners, checkpoint.name))
        with redis_server.client() as client:
            seal = client.hget("baton:worker:genuine", "seal")
            client.hset("baton:worker:other-record", "seal", seal or b"")
        # The router has looked at all of them when it calls the one that is a member's.
        assert listeners["genuine"].called.wait(WAIT_S)
        assert listeners["genuine"].tokens[0] == TOKEN
        url, directory = cluster.url, f"127.0.0.1:{cluster.grpc_port}"
        access = Access(None, cluster.metadata)
        said = {each.subject: each for each in check_cluster(
            url=url, directory=directory, access=access) or ()}  # fmt: skip
        for name, why in zip(
            FORGED, ("no seal", "not of this", "not of this", "s old"), strict=True
        ):
            assert listeners[name].address in said[name].text
            assert why in said[name].text
        log = cluster.router.log.read_text()
        assert log.count("worker_not_believed") >= len(FORGED)
        reasons = {"missing": 1, "forged": 2, "stale": 1}
        for reason, least in reasons.items():
            metric = "baton_directory_unbelieved_records_total"
            assert cluster.router_metric(metric, reason=reason) >= least
        # Neither the router nor the doctor has called them.
        assert {name: listeners[name].tokens for name in FORGED} == {name: [] for name in FORGED}
    finally:
        cluster.stop()
