"""What others may have written into Redis: skipped and counted, and the good workers stay."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.directory.base import BlockUpdate, WorkerRecord
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.identity import Role, WorkerId
from tests.fakes.directory.redis_server import RedisServer
from tests.fuzz.cases import open_site, profile
from tests.fuzz.mutation import TEXTS, mutate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.fuzz.cases import Site

GOOD = WorkerId("good", "1")
BAD = WorkerId("bad", "1")
HASHES = [bytes([i]) * 32 for i in range(1, 9)]
WORDS = (b"", b"0", b"1", b"-1", b"9" * 400, b"nan", b"1e9", b"\xff\xfe", b"x" * 300, b"\x00" * 8)
#: Changes of Redis per look of the router at it.
NUM_CHANGES = 10


class Bench:
    """A router's follower beside a Redis that somebody else writes to."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(open_client(url))
        self.directory = RedisDirectory(self.store)
        self.follower = RedisFollower(self.store)

    async def begin(self) -> None:
        """The good worker registers, with its blocks."""
        for worker in (GOOD, BAD):
            await self.directory.register(a_record(worker), 3600)
            await self.directory.publish(BlockUpdate(worker=worker, sequence=1, stored=HASHES))

    async def look(self) -> None:
        """As the router does all the time: the stream's new entries, then the leases."""
        position = self.follower._position
        if position is not None:
            entries = await self.store.tail(position, wait_s=None, count=500)
            self.follower._apply_all(entries)
        await self.follower.refresh()


def a_record(worker: WorkerId) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        role=Role.DECODE,
        address="127.0.0.1:1",
        model="tiny",
        namespace="ab" * 32,
        block_size=16,
        num_blocks=64,
        max_model_len=64,
    )


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Site, Bench, redis.Redis]]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    try:
        with open_site("redis") as site, server.client() as client:
            bench = Bench(server.url)
            yield site, bench, client
            site.check_growth()
            assert bench.follower.num_malformed + bench.store.num_malformed > 0
            site.run(bench.store.close())
    finally:
        server.kill()


@profile(30, 900)
@given(st.integers(0, 2**64 - 1))
def test_redis(served: tuple[Site, Bench, redis.Redis], seed: int) -> None:
    site, bench, client = served
    random = Random(seed)
    client.flushall()
    site.run(bench.begin())
    site.run(bench.look())
    for _ in range(NUM_CHANGES):
        _spoil(random, client)
        if random.random() < 0.3:
            site.run(bench.look())
    site.case(bench.look, NUM_CHANGES)
    assert bench.follower.members.knows(GOOD)
    assert bench.follower.index.lookup(HASHES)[GOOD] == len(HASHES)


def _spoil(random: Random, client: redis.Redis) -> None:
    """Anything but the good worker's own keys."""
    lease, blocks = "baton:worker:bad", "baton:blocks:bad:1"
    word = random.choice((*WORDS, *(text.encode() for text in TEXTS)))
    match random.randrange(9):
        case 0:
            fields = ["incarnation", "record", "load", "sequence", "lease_ms", "refused", "blocks0"]
            _if_hash(client, lease, random.choice(fields), word)
        case 1:
            packed = client.hget("baton:worker:good", "record") or b""
            _if_hash(client, lease, "record", mutate(random, packed))
        case 2:
            client.delete(key := random.choice((lease, blocks)))
            random.choice((client.set, client.rpush, client.sadd))(key, word)
        case 3:
            if client.type(lease) == b"hash":
                client.hdel(lease, random.choice(["record", "load", "sequence", "lease_ms"]))
        case 4:
            if client.type(blocks) == b"set":
                client.sadd(blocks, word, random.randbytes(9), b"0" + word)
        case 5:
            client.sadd("baton:workers", word)
        case 6:
            client.sadd("baton:workers", name := b"n" + word[:200])
            client.hset(b"baton:worker:" + name, mapping={"incarnation": word, "record": word})
        case _:
            _spoil_stream(random, client, word)


def _spoil_stream(random: Random, client: redis.Redis, word: bytes) -> None:
    entry: dict[Any, Any] = {
        b"n": b"bad",
        b"i": b"1",
        b"k": random.choice((b"delta", b"reset", b"joined", b"left", word)),
        b"s": random.choice((b"2", b"3", word)),
        b"t": random.choice((b"0", b"1", word)),
        b"c": b"0",
        b"r": random.choice((b"", word)),
        b"a": random.choice((b"a" * 8, random.randbytes(24), word)),
    }
    for name in random.sample(sorted(entry), random.randrange(3)):
        del entry[name]
    if random.random() < 0.3:
        entry[random.choice((b"n", b"i", b"s", b"a"))] = word
    client.xadd("baton:stream", entry or {b"x": word}, maxlen=1000)


def _if_hash(client: redis.Redis, key: str, field: str, value: bytes) -> None:
    if client.type(key) in (b"hash", b"none"):
        client.hset(key, field, value)
