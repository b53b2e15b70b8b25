"""A cluster whose directory is Redis, as real processes: Redis breaks, the cluster does not."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
import structlog

from baton.v1 import directory_pb2, directory_pb2_grpc
from cli.cluster import ClusterSpec
from cli.start.ports import free_port
from tests.e2e.asking import ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster, Process
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.processes.warm_cluster import WarmCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from shared.engine.llm import LLM

log = structlog.get_logger(__name__)

NUM_PROMPTS = 6
PROMPT_TOKENS = 5 * BLOCK_SIZE + 3
RESPONSES = "/v1/responses"
RECOVERY_S = 30.0
#: Three heartbeats fit in; a Redis that is silent counts as gone after 2 s.
LEASE_S = 2.0
PAST_LEASE_S = 3.0
#: Between two requests of a thread: the machine has better to do than to answer without a pause.
PAUSE_S = 0.05


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that the test may break."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def on_redis(checkpoint: Path, tmp_path: Path, redis_server: RedisServer) -> Iterator[Cluster]:
    """A router, a prefill and a decode worker that know each other by Redis alone."""
    flags = ("--responses-store", "redis")
    cluster = Cluster(checkpoint, tmp_path, redis_url=redis_server.url, router_flags=flags)
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, lease_s=LEASE_S)
        flags = ("--local-prefill-threshold", "0", "--transfer-timeout-s", "4")
        cluster.add_worker("decode", "decode-0", *ENGINE_FLAGS, *flags, lease_s=LEASE_S)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


class Load:
    """Asks the same prompts over and over, from two threads, and keeps every answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.prompts = [prompt_of(PROMPT_TOKENS, seed=seed) for seed in range(NUM_PROMPTS)]
        self.answers: list[tuple[int, object]] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            number = (number + 1) % NUM_PROMPTS
            try:
                reply: object = ask(
                    self._cluster, self.prompts[number], max_tokens=4, temperature=0.0,
                    ignore_eos=True,
                ).token_ids  # fmt: skip
            except grpc.RpcError as error:
                reply = error
            self.answers.append((number, reply))
            self._over.wait(PAUSE_S)


def holders(cluster: Cluster, prompt: Sequence[int]) -> dict[str, int]:
    """Who holds how many blocks of a prompt, as the router sees it."""
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        stub = directory_pb2_grpc.DirectoryStub(channel)
        workers = stub.ListWorkers(directory_pb2.ListWorkersRequest(), timeout=5).workers
        if not workers:
            return {}
        record = workers[0].record
        hashes = block_hashes(record.namespace, prompt)
        request = directory_pb2.LookupBlocksRequest(block_hashes=hashes)
        found = stub.LookupBlocks(request, timeout=5).holders
    return {holder.worker.name: holder.num_blocks for holder in found}


def block_hashes(namespace: str, prompt: Sequence[int]) -> list[bytes]:
    from shared.kv.identity import KVIdentity

    return KVIdentity(bytes.fromhex(namespace)).hash_blocks(list(prompt), BLOCK_SIZE)


def until(condition: Callable[[], bool], what: str) -> float:
    """Wait for it; returns the seconds that took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < RECOVERY_S, f"never: {what}"
        time.sleep(0.02)
    return time.monotonic() - started


def all_held(cluster: Cluster, load: Load) -> bool:
    wanted = {"prefill-0": 5, "decode-0": 5}
    return all(holders(cluster, prompt) == wanted for prompt in load.prompts)


def test_redis_breaks_under_load_and_nobody_notices(
    on_redis: Cluster, redis_server: RedisServer, oracle: LLM
) -> None:
    """I6: killed and restarted, emptied, paused: every answer is right, and the entries return."""
    load = Load(on_redis)
    try:
        until(lambda: all_held(on_redis, load), "every prompt is held by both")

        redis_server.kill()
        time.sleep(PAST_LEASE_S)
        assert all_held(on_redis, load), "the router lost its last picture"
        redis_server.start()
        num_leases = lambda: len(redis_server.client().keys("baton:blocks:*"))  # noqa: E731
        took_s = until(lambda: num_leases() == 2, "both workers are back in Redis")
        log.info("recovered", fault="redis killed", after_s=round(took_s, 2))

        redis_server.client().flushall()
        took_s = until(lambda: num_leases() == 2, "both workers are back in Redis")
        log.info("recovered", fault="flushall", after_s=round(took_s, 2))

        redis_server.pause()
        time.sleep(PAST_LEASE_S)
        redis_server.go_on()
        took_s = until(lambda: num_leases() == 2, "both workers are back in Redis")
        log.info("recovered", fault="redis paused", after_s=round(took_s, 2))
        until(lambda: all_held(on_redis, load), "every prompt is held by both")
        for process in on_redis.processes:
            process.check()
    finally:
        load.stop()
    expected = [expect(oracle, prompt, max_tokens=4, temperature=0.0) for prompt in load.prompts]
    wrong = [(n, answer) for n, answer in load.answers if answer != expected[n]]
    assert not wrong
    assert len(load.answers) > 20
    log.info("load", num_requests=len(load.answers))


def test_entries_of_a_killed_worker_end_with_its_lease_and_a_new_router_knows_the_rest(
    on_redis: Cluster, redis_server: RedisServer
) -> None:
    prompt = prompt_of(PROMPT_TOKENS, seed=1)
    ask(on_redis, prompt, max_tokens=2, temperature=0.0, ignore_eos=True)
    until(lambda: len(holders(on_redis, prompt)) == 2, "both hold the prompt")
    on_redis.workers.pop("prefill-0").kill()
    took_s = until(lambda: holders(on_redis, prompt) == {"decode-0": 5}, "the dead one is gone")
    log.info("entries_gone", after_s=round(took_s, 2))
    assert len(redis_server.client().keys("baton:blocks:*")) == 1
    on_redis.router.kill()
    on_redis.router.start()
    on_redis.wait_ready(num_prefill=0)
    assert holders(on_redis, prompt) == {"decode-0": 5}


def test_responses_outlive_the_router_that_made_them(on_redis: Cluster) -> None:
    """What it had made is there, and what it was making has failed."""
    with httpx.Client(base_url=on_redis.url, timeout=30) as client:
        asked = {"input": "Hi", "temperature": 0, "ignore_eos": True, "max_output_tokens": 4}
        kept = client.post(RESPONSES, json=asked).json()
        long = {**asked, "max_output_tokens": 1500, "background": True}
        made = client.post(RESPONSES, json=long).json()
        until(
            lambda: client.get(f"{RESPONSES}/{made['id']}").json()["status"] == "in_progress",
            "it runs",
        )
    on_redis.router.kill()
    on_redis.router.start()
    on_redis.wait_ready()
    with httpx.Client(base_url=on_redis.url, timeout=30) as client:
        assert client.get(f"{RESPONSES}/{kept['id']}").json() == kept
        more = client.post(RESPONSES, json={**asked, "previous_response_id": kept["id"]})
        assert more.status_code == 200, more.text
        until(
            lambda: client.get(f"{RESPONSES}/{made['id']}").json()["status"] == "failed",
            "it has failed",
        )
        assert "router" in client.get(f"{RESPONSES}/{made['id']}").json()["error"]["message"]


def test_a_worker_that_was_stopped_past_its_lease_comes_back_with_all_it_holds(
    on_redis: Cluster, redis_server: RedisServer, oracle: LLM
) -> None:
    """I6: it is gone while it sleeps, nobody waits for it, and it needs no restart."""
    known, fresh = prompt_of(PROMPT_TOKENS, seed=1), prompt_of(PROMPT_TOKENS, seed=2)

    def answer(prompt: list[int]) -> tuple[int, ...]:
        reply = ask(on_redis, prompt, max_tokens=4, temperature=0.0, ignore_eos=True)
        return reply.token_ids

    assert answer(known) == expect(oracle, known, max_tokens=4, temperature=0.0)
    until(lambda: len(holders(on_redis, known)) == 2, "both hold the prompt")
    on_redis.workers["prefill-0"].popen.send_signal(signal.SIGSTOP)
    try:
        until(lambda: holders(on_redis, known) == {"decode-0": 5}, "the sleeper is gone")
        assert len(redis_server.client().keys("baton:blocks:*")) == 1
        assert answer(fresh) == expect(oracle, fresh, max_tokens=4, temperature=0.0)
    finally:
        on_redis.workers["prefill-0"].popen.send_signal(signal.SIGCONT)
    took_s = until(lambda: len(holders(on_redis, known)) == 2, "the sleeper is back")
    log.info("recovered", fault="worker stopped past its lease", after_s=round(took_s, 2))
    assert answer(known) == expect(oracle, known, max_tokens=4, temperature=0.0)
    on_redis.wait_idle()


@pytest.mark.parametrize("directory", ["redis", "router"])
def test_a_worker_that_hashes_otherwise_ends_with_both_digests(
    checkpoint: Path, tmp_path: Path, redis_server: RedisServer, directory: str
) -> None:
    """I7: no silent misses."""
    on_redis = Cluster(
        checkpoint, tmp_path, redis_url=redis_server.url if directory == "redis" else None
    )
    try:
        until(on_redis.answers, "the router answers")
        flags = ("--model", str(checkpoint), *on_redis.directory_flags, *ENGINE_FLAGS)
        argv = ["tests.fakes.worker.other_hashes", "--name", "odd", *flags]
        odd = Process("odd", argv, tmp_path / "odd.log")
        assert odd.popen.wait(60) == 1
    finally:
        on_redis.stop()
    (line,) = [line for line in odd.log.read_text().splitlines() if "directory_refuses" in line]
    assert "block_hash" in line
    digests = [word for word in line.replace("'", " ").split() if len(word) == 64]
    assert len(set(digests)) == 2


def test_the_command_passes_redis_on_and_shows_its_url_to_nobody(
    checkpoint: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    """`baton up --redis-url`, with two routers that need no port of their own for workers."""
    spec = ClusterSpec(
        model=checkpoint,
        served_model_name="tiny",
        log_folder=tmp_path,
        port=free_port(),
        grpc_port=free_port(),
        num_routers=2,
        worker_flags=ENGINE_FLAGS,
        router_flags=("--placement", "disaggregated"),
        redis_url=redis_server.url,
    )
    with WarmCluster(spec) as local:
        local.start()
        local.wait_ready(lambda _: None)
        assert len(redis_server.client().keys("baton:worker:*")) == 2
        for process in local.processes:
            assert not [flag for flag in process.flags if "redis:" in flag]
            assert process.environ["BATON_REDIS_URL"] == redis_server.url
    assert local.killed == []
    assert redis_server.client().keys("baton:worker:*") == []
