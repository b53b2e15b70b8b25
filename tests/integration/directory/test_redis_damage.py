"""Keys of Redis that hold what they cannot: no restart waits for a person, and no worker leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from shared.directory.index import block_keys
from shared.directory.redis.keys import Kind
from shared.identity import WorkerId
from shared.worker.join import membership as membership_module
from tests.fakes.directory.redis_side import Side, until
from tests.fakes.directory.redis_worker import RedisWorker
from tests.suites.directory import DEVICE, A

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis

    from shared.directory.redis.follower import RedisFollower
    from tests.fakes.directory.redis_server import RedisServer

LEASE_S = 1.5
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
WRONG_KINDS: dict[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda client, key: client.set(key, b"\xff no value"),
    "list": lambda client, key: client.rpush(key, "x", "y"),
    "set": lambda client, key: client.sadd(key, "x"),
    "hash": lambda client, key: client.hset(key, "x", "y"),
    "zset": lambda client, key: client.zadd(key, {"x": 1.0}),
    "stream": lambda client, key: client.xadd(key, {"x": "y"}),
}
RIGHT_KIND = {
    Kind.WORKERS: "set", Kind.WORKER: "hash", Kind.BLOCKS: "set", Kind.STAGED: "set",
    Kind.STREAM: "stream", Kind.EPOCH: "string",
}  # fmt: skip


def put_instead(client: redis.Redis, key: str, put: Callable[[redis.Redis, str], object]) -> None:
    """Replace a key, and let no heartbeat make it again in between."""
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(key)
        put(pipe, key)
        pipe.execute()


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(membership_module, "HEARTBEAT_S", 0.1)


class Scene:
    """Two workers and a router on one Redis; each may be started again."""

    def __init__(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        self.client = redis_server.client()
        self._sides = {name: Side() for name in ("a", "b", "router")}
        self.workers: dict[str, tuple[WorkerId, RedisWorker]] = {}
        self.follower: RedisFollower
        self.left: list[WorkerId] = []

    async def start(self, name: str, incarnation: str = "1") -> None:
        """Start one of the three, for the first time or again."""
        await self._sides[name].close()
        side = self._sides[name] = Side()
        if name == "router":
            self.follower = side.follow(self.server.url)
            self.follower.members.on_leave(self.left.append)
            return
        worker = WorkerId(name, incarnation)
        fake = RedisWorker(side, self.server.url, worker, lease_s=0.3)
        fake.work()
        self.workers[name] = worker, fake

    async def is_whole(self) -> None:
        """The router knows both workers, and holds of each what its pool does."""
        await until(self._is_whole)

    async def close(self) -> None:
        self.client.close()
        for side in self._sides.values():
            await side.close()

    def _is_whole(self) -> bool:
        return self.follower.connected and all(
            self.follower.members.knows(worker)
            and self.follower.index.blocks_of(worker).get(DEVICE, set())
            == set(block_keys(fake.engine.pool.hashes()))
            for worker, fake in self.workers.values()
        )

    def key(self, kind: Kind) -> list[str]:
        """The keys of that kind which concern the worker `a`."""
        worker = self.workers["a"][0]
        names = {
            Kind.WORKER: [f"baton:worker:{worker.name}"],
            Kind.BLOCKS: [f"baton:blocks:{worker.name}:{worker.incarnation}"],
            Kind.STAGED: [
                f"baton:staged:{worker.name}:{worker.incarnation}:{number}" for number in range(30)
            ],
        }
        return names.get(kind, [f"baton:{kind}"])


@pytest.fixture
async def scene(redis_server: RedisServer) -> AsyncIterator[Scene]:
    scene = Scene(redis_server)
    for name in ("a", "b", "router"):
        await scene.start(name)
    await scene.is_whole()
    yield scene
    await scene.close()


async def damage_in_every_situation(scene: Scene, damage: Callable[[], None]) -> None:
    """Both run; the router is started again; the worker is. I6: each time all is as before."""
    for restarted in (None, "router", "a"):
        damage()
        scene.left.clear()
        if restarted is not None:
            await scene.start(restarted, incarnation="2")
        # Heartbeats and looks that began before the damage have ended.
        await asyncio.sleep(0.15)
        for _, fake in scene.workers.values():
            fake.work()
        await scene.is_whole()
        assert set(scene.left) <= ({A} if restarted == "a" else set())


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(kind, wrong) for kind in Kind for wrong in WRONG_KINDS if wrong != RIGHT_KIND[kind]],
)
async def test_a_key_of_another_kind_is_set_aside_and_made_again(
    scene: Scene, kind: Kind, wrong: str
) -> None:
    def damage() -> None:
        for key in scene.key(kind):
            put_instead(scene.client, key, WRONG_KINDS[wrong])
        if kind is Kind.STAGED:
            # Something that makes the worker send a snapshot.
            scene.client.delete(*scene.key(Kind.BLOCKS))

    damage()
    # Whether the router or a worker has found it, the router counts it.
    await until(lambda: scene.follower.num_damaged(kind) > 0)
    await scene.is_whole()
    await damage_in_every_situation(scene, damage)
    kept = [key for key in scene.client.keys("baton:damaged:*") if f":{kind}".encode() in key]
    assert kept
    assert all(0 < scene.client.ttl(key) <= 86_400 for key in kept)
    assert {scene.client.type(key).decode() for key in kept} == {wrong}


GARBAGE = (b"", b"-1", b"nan", b"0x10", b"9" * 15, b"9" * 400, b"\xff\xfe", b"x y")


@pytest.mark.parametrize("value", GARBAGE)
async def test_fields_of_a_lease_that_make_no_sense_are_written_again(
    scene: Scene, value: bytes
) -> None:
    fields = ["incarnation", "record", "load", "sequence", "lease_ms", "num_blocks",
              "blocks0", "blocks1", "blocks2"]  # fmt: skip

    def damage() -> None:
        key = scene.key(Kind.WORKER)[0]
        scene.client.hset(key, fields[0], value)
        scene.client.persist(key)
        fields.append(fields.pop(0))

    for _ in range(3):
        await damage_in_every_situation(scene, damage)


def _garbage(scene: Scene) -> dict[str, Callable[[], object]]:
    client, blocks = scene.client, scene.key(Kind.BLOCKS)[0]
    return {
        "workers without a name": lambda: client.delete("baton:workers"),
        "workers of no name": lambda: client.sadd("baton:workers", b"\xff", b"", "x", "9" * 300),
        "a lease of other fields": lambda: put_instead(
            client, "baton:worker:a", WRONG_KINDS["hash"]
        ),
        "a lease of a worker that never was": lambda: (
            client.sadd("baton:workers", b"\xfe"),
            client.hset(b"baton:worker:\xfe", "incarnation", "1"),
        ),
        "a record of another worker": lambda: client.hset(
            "baton:worker:a", "record", client.hget("baton:worker:b", "record") or b""
        ),
        "no blocks": lambda: client.delete(blocks),
        "blocks that are none": lambda: client.sadd(blocks, "x", b"7" * 9, b"0" + b"q" * 8),
        "a stream that is full": lambda: put_instead(
            client, "baton:stream", lambda to, key: to.xadd(key, {"x": "y"}, id=LAST_ID)
        ),
        "entries of nothing": lambda: client.xadd("baton:stream", {"k": "damaged", "key": b"\xff"}),
        "an update far ahead": lambda: client.xadd("baton:stream", {
            "n": "a", "i": "1", "k": "delta", "s": "999999", "t": "0", "c": "0", "r": "", "a": "",
        }),
        "another epoch": lambda: client.set("baton:epoch", b"\xff" * 300),
        "no stream": lambda: client.delete("baton:stream"),
    }  # fmt: skip


@pytest.mark.parametrize("what", range(12))
async def test_contents_that_make_no_sense_are_made_again(scene: Scene, what: int) -> None:
    name = list(_garbage(scene))[what]
    await damage_in_every_situation(scene, lambda: (_garbage(scene)[name](), None)[1])


async def test_the_log_names_the_key_and_where_it_is_kept(scene: Scene) -> None:
    with capture_logs() as logs:
        scene.client.set("baton:workers", "x")
        await until(lambda: any(entry["event"] == "redis_key_damaged" for entry in logs))
    entry = next(entry for entry in logs if entry["event"] == "redis_key_damaged")
    assert "baton:workers" in entry["key"]
    assert scene.client.get(f"{entry['kept_as']}baton:workers") == b"x"
