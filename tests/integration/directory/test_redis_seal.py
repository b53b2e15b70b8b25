"""Sealed records on a real Redis: a changed token, a damaged seal, and no worker leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.directory.redis.seal import RecordSeals, SealFault
from shared.rpc.auth import ClusterToken
from shared.worker.join import membership as membership_module
from tests.fakes.directory.redis_side import Side, until
from tests.fakes.directory.redis_worker import RedisWorker
from tests.suites.directory import A

if TYPE_CHECKING:
    from pathlib import Path

    from shared.directory.redis.follower import RedisFollower
    from shared.identity import WorkerId
    from tests.fakes.directory.redis_server import RedisServer

ONE, TWO, OTHER = "1" * 32, "2" * 32, "3" * 32
LEASE_S = 1.5


class Parties:
    """A worker and a router, each with its own copy of the token's file."""

    def __init__(self, side: Side, url: str, folder: Path) -> None:
        self.files = (folder / "worker", folder / "router")
        for path in self.files:
            path.write_text(ONE)
        self.tokens = [ClusterToken(path) for path in self.files]
        worker, router = map(RecordSeals, self.tokens)
        RedisWorker(side, url, lease_s=0.3, seals=worker)
        self.follower: RedisFollower = side.follow(url, seals=router)
        self.left: list[WorkerId] = []
        self.follower.members.on_leave(self.left.append)

    def write(self, number: int, text: str) -> None:
        self.files[number].write_text(text)
        self.tokens[number].file.reload()


@pytest.fixture
async def parties(
    side: Side, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Parties:
    monkeypatch.setattr(membership_module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(membership_module, "HEARTBEAT_S", 0.1)
    parties = Parties(side, redis_server.url, tmp_path)
    await until(lambda: parties.follower.members.knows(A))
    return parties


async def other_seal(redis_server: RedisServer) -> None:
    """A heartbeat has come since, and the router has looked since."""
    with redis_server.client() as client:
        before = client.hget("baton:worker:a", "seal")
        await until(lambda: client.hget("baton:worker:a", "seal") != before)


async def test_the_token_is_changed_and_nobody_leaves(
    parties: Parties, redis_server: RedisServer
) -> None:
    for text in (f"{ONE}\n{TWO}", f"{TWO}\n{ONE}", TWO):
        for number in (0, 1):
            parties.write(number, text)
            await other_seal(redis_server)
    assert parties.left == []
    assert {parties.follower.num_refused(fault) for fault in SealFault} == {0}


@pytest.mark.parametrize("seal", [b"", b"x", b"x" * 40])
async def test_a_damaged_seal_is_made_again_and_nobody_leaves(
    parties: Parties, redis_server: RedisServer, seal: bytes
) -> None:
    with redis_server.client() as client:
        client.hset("baton:worker:a", "seal", seal)
        await other_seal(redis_server)
        client.hset("baton:worker:a", "record", b"\xff")
        await other_seal(redis_server)
        assert client.hget("baton:worker:a", "record") != b"\xff"
    assert parties.left == []


async def test_a_worker_of_another_token_is_refused_and_not_told_to_end(
    side: Side, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The token's file may just have changed here and not there."""
    parties = Parties(side, redis_server.url, tmp_path)
    parties.write(1, OTHER)
    await until(lambda: parties.follower.num_refused(SealFault.FORGED) == 1)
    (refused,) = parties.follower.refused
    assert (refused.worker, refused.address) == (A, "127.0.0.1:5001")
    with redis_server.client() as client:
        assert client.hget("baton:worker:a", "refused") is None
    parties.write(1, ONE)
    await until(lambda: parties.follower.members.knows(A))
    assert not parties.follower.refused
