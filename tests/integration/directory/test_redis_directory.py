"""The directory's behaviour on a real Redis, and what Redis holds for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.directory.base import BlockUpdate, WorkerLoad
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.errors import ConfigError, UnavailableError, UnknownIncarnationError
from tests.fakes.directory.redis_server import RedisServer
from tests.suites.directory import (
    DEVICE,
    DISK,
    HOST,
    LEASE_S,
    A,
    Cluster,
    DirectorySuite,
    hashes,
    record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.directory.base import WorkerRecord


class TestRedisDirectory(DirectorySuite):
    @pytest.fixture
    def cluster(self, store: RedisStore, redis_server: RedisServer) -> Cluster:
        directory = RedisDirectory(store, poll_s=0.01)
        return Cluster(directory, directory, redis_server.let_time_pass)

    async def join_and_beat(self, cluster: Cluster, worker: WorkerRecord) -> None:
        await super().join_and_beat(cluster, worker)
        await cluster.registry.workers()
        await cluster.registry.heartbeat(worker.worker, WorkerLoad())


async def test_a_worker_is_one_lease_and_one_set_that_end_together(
    store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A), LEASE_S)
    await directory.replace(A, 1, {DEVICE: hashes("1", "2"), HOST: hashes("2")})
    await directory.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("3"), tier=DISK))
    with redis_server.client() as client:
        mine = sorted(key for key in client.keys("*") if client.pttl(key) >= 0)
        assert mine == [b"baton:blocks:a:1", b"baton:worker:a"]
        ends = {client.execute_command("PEXPIRETIME", key) for key in mine}
        assert max(ends) - min(ends) <= 5
        assert client.scard("baton:blocks:a:1") == 4
        assert client.hmget("baton:worker:a", "blocks0", "blocks1", "blocks2") == [b"2", b"1", b"1"]
        redis_server.let_time_pass(LEASE_S)
        assert not [key for key in client.keys("*") if b":a" in key]


async def test_the_counts_agree_with_the_set_after_any_updates(
    store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A, num_blocks=3), LEASE_S)
    updates = [
        BlockUpdate(worker=A, sequence=1, stored=hashes("1", "1", "2")),
        BlockUpdate(worker=A, sequence=2, stored=hashes("1"), tier=HOST),
        BlockUpdate(worker=A, sequence=3, removed=hashes("1", "9"), stored=hashes("3", "4", "5")),
        BlockUpdate(worker=A, sequence=4, cleared=True, stored=hashes("7"), tier=HOST),
    ]
    for update in updates:
        await directory.publish(update)
        with redis_server.client() as client:
            members = client.smembers("baton:blocks:a:1")
            counts = client.hmget("baton:worker:a", "blocks0", "blocks1")
        for digit, count in zip((b"0", b"1"), counts, strict=True):
            assert int(count) == sum(member[:1] == digit for member in members)


async def test_a_full_redis_renews_leases_and_takes_no_blocks(
    store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A), LEASE_S)
    await directory.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1")))
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            for renew in (
                lambda: directory.heartbeat(A, WorkerLoad(num_running=2)),
                lambda: directory.register(record(A), LEASE_S),
            ):
                redis_server.let_time_pass(LEASE_S * 0.75)
                await renew()
            redis_server.let_time_pass(LEASE_S * 0.75)
            with pytest.raises(UnavailableError):
                await directory.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("2")))
            (event,) = await directory.workers()
            assert event.load.num_running == 2
            assert await directory.lookup(hashes("1", "2")) == {A: 1}
        finally:
            client.config_set("maxmemory", 0)
    await directory.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("2")))
    assert await directory.lookup(hashes("1", "2")) == {A: 2}


async def test_a_redis_that_came_back_with_an_older_state_is_told_everything_again(
    store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A), LEASE_S)
    await directory.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1")))
    await directory.heartbeat(A, WorkerLoad())
    with redis_server.client() as client:
        client.hset("baton:worker:a", "sequence", 0)
    with pytest.raises(UnknownIncarnationError):
        await directory.heartbeat(A, WorkerLoad())
    await directory.register(record(A), LEASE_S)
    await directory.heartbeat(A, WorkerLoad())


async def test_the_stream_is_bounded_in_entries_and_in_bytes(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(open_client(redis_server.url), stream_length=100, max_blocks_per_entry=4)
    directory = RedisDirectory(store)
    await directory.register(record(A, num_blocks=1000), LEASE_S)
    for sequence in range(1, 400):
        names = [f"{sequence}-{number}" for number in range(6 if sequence % 2 else 4)]
        await directory.publish(
            BlockUpdate(worker=A, sequence=sequence, stored=hashes(*names), cleared=True)
        )
    with redis_server.client() as client:
        entries = client.xrange("baton:stream")
    await store.close()
    # Redis trims whole nodes of the stream, of 100 entries by default.
    assert len(entries) <= 300
    assert {len(fields.get(b"a", b"")) for _, fields in entries} == {0, 32}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis with a user that may touch the directory's keys and nothing else."""
    rule = "user baton on >secret%word ~baton:* +@all -@admin -@dangerous"
    (tmp_path / "users.acl").write_text(f"user default off\n{rule}\n")
    server = RedisServer(tmp_path, "--aclfile", str(tmp_path / "users.acl"))
    server.start()
    yield server
    server.kill()


async def test_a_user_with_a_password_and_its_own_keys_suffices(guarded: RedisServer) -> None:
    store = RedisStore(open_client(f"redis://baton:secret%25word@127.0.0.1:{guarded.port}/0"))
    directory = RedisDirectory(store)
    await directory.register(record(A), LEASE_S)
    await directory.replace(A, 1, {DEVICE: hashes("1", "2")})
    await directory.publish(BlockUpdate(worker=A, sequence=2, removed=hashes("2")))
    await directory.heartbeat(A, WorkerLoad())
    assert await directory.lookup(hashes("1", "2")) == {A: 1}
    await directory.deregister(A)
    await store.close()


@pytest.mark.parametrize("credentials", ["", "baton:wrong@", "nobody:secret%25word@"])
async def test_without_the_password_redis_is_unavailable(
    guarded: RedisServer, credentials: str
) -> None:
    store = RedisStore(open_client(f"redis://{credentials}127.0.0.1:{guarded.port}/0"))
    with pytest.raises(UnavailableError) as caught:
        await RedisDirectory(store).register(record(A), LEASE_S)
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["http://x", "redis://x:port", "redis+sentinel://x:1", "redis+sentinel://x:no/service", "x"],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="Redis URL"):
        open_client(url)


async def test_sentinels_lead_to_whoever_is_master(tmp_path: Path) -> None:
    master, other = RedisServer(tmp_path), RedisServer(tmp_path)
    master.start()
    other.start()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor baton-set 127.0.0.1 {master.port} 1\n")
    sentinel = RedisServer(tmp_path, str(config), "--sentinel")
    sentinel.start()
    store = RedisStore(open_client(f"redis+sentinel://127.0.0.1:{sentinel.port}/baton-set/0"))
    directory = RedisDirectory(store)
    try:
        await directory.register(record(A), LEASE_S)
        with master.client() as client:
            assert client.exists("baton:worker:a")
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "REMOVE", "baton-set")
            client.execute_command("SENTINEL", "MONITOR", "baton-set", "127.0.0.1", other.port, 1)
        master.kill()
        with pytest.raises(UnavailableError):
            await directory.heartbeat(A, WorkerLoad())
        with pytest.raises(UnknownIncarnationError):
            await directory.heartbeat(A, WorkerLoad())
        await directory.register(record(A), LEASE_S)
        with other.client() as client:
            assert client.exists("baton:worker:a")
    finally:
        await store.close()
        for server in (master, other, sentinel):
            server.kill()
