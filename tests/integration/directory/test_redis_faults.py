"""Redis breaks in every way; workers and routers recover by themselves."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import structlog

from shared.directory.index import block_keys
from shared.worker.join import membership as membership_module
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.directory.redis_side import Side, until
from tests.fakes.directory.redis_worker import RedisWorker
from tests.fakes.servers.tcp_proxy import TcpProxy
from tests.suites.directory import DEVICE, A

if TYPE_CHECKING:
    from pathlib import Path

    from shared.identity import WorkerId

LEASE_S = 1.0
log = structlog.get_logger(__name__)


@pytest.mark.parametrize("fault", ["killed", "paused", "flushed", "cut"])
async def test_both_sides_recover_by_themselves(
    side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """I6: nobody leaves because of Redis, and the index is equal to the pool again."""
    monkeypatch.setattr(membership_module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(membership_module, "HEARTBEAT_S", LEASE_S / 3)
    server = RedisServer(tmp_path)
    server.start()
    try:
        async with TcpProxy(server.port) as proxy:
            await _fault_and_recovery(side, server, proxy, fault)
            await side.close()
    finally:
        server.kill()


async def _fault_and_recovery(side: Side, server: RedisServer, proxy: TcpProxy, fault: str) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    worker, follower = RedisWorker(side, url, lease_s=LEASE_S), side.follow(url)
    left: list[WorkerId] = []
    follower.members.on_leave(left.append)

    def equal() -> bool:
        expected = set(block_keys(worker.engine.pool.hashes()))
        return bool(expected) and follower.index.blocks_of(A)[DEVICE] == expected

    for _ in range(20):
        worker.work()
        await asyncio.sleep(0.01)
    await until(equal)
    before = follower.index.blocks_of(A)
    if fault == "killed":
        server.kill()
    elif fault == "paused":
        server.pause()
    elif fault == "flushed":
        with server.client() as client:
            client.flushall()
    else:
        proxy.refusing = True
        await proxy.cut()
    if fault != "flushed":
        await until(lambda: not follower.connected)
        assert follower.index.blocks_of(A) == before
    for _ in range(30):
        worker.work()
        await asyncio.sleep(0.01)
    if fault == "paused":
        await asyncio.sleep(2 * LEASE_S)
        server.go_on()
    elif fault == "killed":
        await asyncio.sleep(2 * LEASE_S)
        server.start()
    elif fault == "cut":
        proxy.refusing = False
    back_s = time.monotonic()
    await until(lambda: follower.connected and equal())
    log.info("recovered", fault=fault, after_s=round(time.monotonic() - back_s, 2))
    assert left == []
    for _ in range(10):
        worker.work()
        await asyncio.sleep(0.01)
    await until(equal)
