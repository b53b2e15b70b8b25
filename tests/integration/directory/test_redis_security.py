"""The directory on a Redis that trusts nobody: TLS both ways, a password, and no right too many."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest
import redis

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.redis import store as responses
from services.router.openai.responses_api.stored.redis.board import RedisBoard
from services.router.openai.responses_api.stored.redis.scripts import ResponseScripts
from shared.directory.base import BlockUpdate, WorkerLoad
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.errors import ConfigError, UnavailableError, UnknownIncarnationError
from shared.rpc.tls.identity import PeerRole
from tests.fakes.directory.secure_redis import PASSWORD, SecureRedis
from tests.fakes.security.certificates import authority, issue
from tests.suites.directory import DEVICE, LEASE_S, A, Cluster, DirectorySuite, hashes, record
from tests.suites.router.response_store import Clock, ResponseStoreSuite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from cli.security.authority import Authority
    from shared.directory.base import WorkerRecord
    from tests.suites.router.response_store import MakeStore


@pytest.fixture(scope="module")
def ca() -> Authority:
    return authority()


@pytest.fixture(scope="module")
def common_server(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRedis]:
    server = SecureRedis(tmp_path_factory.mktemp("redis"), ca)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def secure(common_server: SecureRedis) -> SecureRedis:
    """Empty, and without a script that somebody has loaded before."""
    with common_server.client() as client:
        client.flushall()
        client.script_flush()
        client.acl_log_reset()
    return common_server


@pytest.fixture
async def baton(secure: SecureRedis) -> AsyncIterator[RedisStore]:
    store = RedisStore(open_client(secure.url, password_file=secure.password_file))
    yield store
    await store.close()


class TestWithTheRightsOfTheAcl(DirectorySuite):
    """Everything that the directory does, as the user of baton.acl."""

    @pytest.fixture
    def cluster(self, baton: RedisStore, secure: SecureRedis) -> Cluster:
        directory = RedisDirectory(baton, poll_s=0.01)
        return Cluster(directory, directory, secure.let_time_pass)

    async def join_and_beat(self, cluster: Cluster, worker: WorkerRecord) -> None:
        await super().join_and_beat(cluster, worker)
        await cluster.registry.workers()
        await cluster.registry.heartbeat(worker.worker, WorkerLoad())


class TestResponsesWithTheRightsOfTheAcl(ResponseStoreSuite):
    """Everything that the store of responses does, as the user of baton.acl."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def make(self, baton: RedisStore, secure: SecureRedis, clock: Clock) -> MakeStore:
        def make(
            *,
            entries: int = 100,
            num_bytes: int = 1000,
            age_s: float = 60,
            event_bytes: int = 500,
        ) -> responses.RedisStore:
            limits = StoreLimits(
                max_entries=entries,
                max_bytes=num_bytes,
                max_age_s=age_s,
                max_event_bytes=event_bytes,
            )
            scripts = ResponseScripts(baton._client, max_age_s=age_s, clock_s=clock)
            return responses.RedisStore(scripts, limits)

        return make


async def test_runs_of_responses_need_no_more_than_the_acl(baton: RedisStore) -> None:
    board = RedisBoard(ResponseScripts(baton._client, max_age_s=60))
    await board.renew([("a", "x")])
    assert await board.is_alive(("a", "x"))
    assert await board.cancel(("a", "x"))
    assert list(await board.renew([("a", "x")])) == [("a", "x")]
    await board.remove(("a", "x"))


async def test_a_follower_needs_no_more_than_the_acl(
    baton: RedisStore, secure: SecureRedis
) -> None:
    """Snapshot, stream, and a scan of the set: what routers do."""
    follower = RedisFollower(baton, poll_s=0.05)
    following = asyncio.create_task(follower.run())
    directory = RedisDirectory(baton)
    await directory.register(record(A), LEASE_S)
    await directory.replace(A, 1, {DEVICE: hashes("1", "2")})
    await directory.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("3")))
    async with asyncio.timeout(10):
        while follower.index.sequence(A) != 2:  # noqa: ASYNC110 the index tells nobody
            await asyncio.sleep(0.01)
    await baton.refuse(A, "because")
    await directory.deregister(A)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    with secure.client() as client:
        # redis-py offers its name, and does not mind that nobody wants it.
        assert {entry["object"] for entry in client.acl_log()} <= {"client", "client|setinfo"}


async def test_damaged_keys_are_set_aside_with_no_more_than_the_acl(
    baton: RedisStore, secure: SecureRedis
) -> None:
    directory = RedisDirectory(baton)
    await directory.register(record(A), LEASE_S)
    with secure.client() as client:
        for key in ("workers", "stream", "epoch", f"worker:{A.name}"):
            client.delete(f"baton:{key}")
            client.rpush(f"baton:{key}", "x")
        with pytest.raises(UnknownIncarnationError):
            await directory.heartbeat(A, WorkerLoad())
        await directory.register(record(A), LEASE_S)
        await directory.heartbeat(A, WorkerLoad())
        assert [lease.name for lease in (await baton.state()).leases] == [A.name]
        assert len(client.keys("baton:damaged:*")) == 4
        assert {entry["object"] for entry in client.acl_log()} <= {"client", "client|setinfo"}


@pytest.mark.parametrize(
    "command",
    [
        "GET other", "SET other 1", "HGETALL other:worker:a", "DEL baton:workers", "KEYS *",
        "SCAN 0", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "ACL LIST", "CLIENT LIST", "INFO",
 "SHUTDOWN NOSAVE", "MONITOR", "EVAL return(1) 0", "SCRIPT FLUSH",
        "PUBLISH baton x", "SUBSCRIBE baton", "REPLICAOF NO ONE", "SAVE", "SWAPDB 0 1",
        "FUNCTION LIST", "MODULE LIST", "RENAME baton:workers other", "XADD other * a b",
    ],
)  # fmt: skip
def test_the_user_of_the_acl_may_do_nothing_else(secure: SecureRedis, command: str) -> None:
    with (
        secure.client("baton", PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command.split())


def test_a_script_may_not_touch_other_keys_either(secure: SecureRedis) -> None:
    with secure.client("baton", PASSWORD) as client:
        digest = client.script_load("return redis.call('SET', 'other', '1')")
        with pytest.raises(redis.exceptions.ResponseError, match="can't access"):
            client.evalsha(digest, 0)
    with secure.client() as client:
        assert client.keys("*") == []


async def refused(url: str, password_file: Path | None) -> str:
    store = RedisStore(open_client(url, password_file=password_file))
    try:
        with pytest.raises(UnavailableError) as error:
            await store.state()
    finally:
        await store.close()
    # asyncio's transport of a handshake that failed closes itself when it is forgotten.
    gc.collect()
    return str(error.value)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
async def test_each_door_is_shut(secure: SecureRedis, tmp_path: Path) -> None:
    """Plain text, no certificate, another CA's, no password, a wrong one, another host's name."""
    known = secure.password_file
    assert PASSWORD not in await refused(f"redis://baton@127.0.0.1:{secure.port}/0", known)
    only_ca = f"ssl_ca_certs={secure.tls.tls_ca}"
    assert await refused(f"rediss://baton@127.0.0.1:{secure.port}/0?{only_ca}", known)
    other = issue(authority(), tmp_path / "other", PeerRole.DECODE)
    shown = f"ssl_certfile={other.tls_cert}&ssl_keyfile={other.tls_key}"
    assert await refused(f"rediss://baton@127.0.0.1:{secure.port}/0?{only_ca}&{shown}", known)
    foreign = secure.url.replace(str(secure.tls.tls_ca), str(other.tls_ca))
    assert "CERTIFICATE_VERIFY_FAILED" in await refused(foreign, known)
    assert "authenticated" in await refused(secure.url.replace("baton@", ""), None)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    assert "wrong" not in await refused(secure.url, wrong)


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
async def test_a_server_elsewhere_than_its_certificate_says_is_not_talked_to(
    ca: Authority, tmp_path: Path
) -> None:
    server = SecureRedis(tmp_path, ca)
    issue(ca, tmp_path / "certs", PeerRole.DECODE, stem="redis", hosts=("elsewhere.example",))
    server._answers = lambda: _log_says(tmp_path, server.port)  # type: ignore[method-assign]
    server.start()
    try:
        assert "mismatch" in await refused(server.url, server.password_file)
    finally:
        server.kill()


def _log_says(folder: Path, port: int) -> bool:
    return "Ready to accept" in (folder / f"redis-{port}.log").read_text()


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
async def test_a_password_that_has_changed_is_read_with_the_next_connection(
    secure: SecureRedis, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    store = RedisStore(open_client(secure.url, password_file=file))
    await store.state()
    with secure.client() as client:
        client.execute_command("ACL", "SETUSER", "baton", ">the next one")
        client.execute_command("CLIENT", "KILL", "USER", "baton")
        file.write_text("the next one\n")
        await asyncio.sleep(0)
        for _ in range(2):
            try:
                await store.state()
                break
            except UnavailableError:
                continue
        await store.state()
        client.execute_command("ACL", "SETUSER", "baton", "<the next one")
    await store.close()


def test_a_password_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--redis-password-file .*missing: .*No such file"):
        open_client("redis://a@127.0.0.1", password_file=tmp_path / "missing")
    file = tmp_path / "password"
    file.write_text("x")
    with pytest.raises(ConfigError, match="has a password, and so has"):
        open_client("redis://a:b@127.0.0.1", password_file=file)
    sentinel = open_client("rediss+sentinel://a@127.0.0.1/main?ssl_ca_certs=/x", password_file=file)
    options = sentinel.connection_pool.connection_kwargs
    assert options["ssl_ca_certs"] == "/x"
    assert options["credential_provider"].get_credentials() == ("a", "x")
    (above,) = sentinel.connection_pool.sentinel_manager.sentinels
    assert above.connection_pool.connection_kwargs["ssl_ca_certs"] == "/x"
    assert above.connection_pool.connection_kwargs["credential_provider"] is None
