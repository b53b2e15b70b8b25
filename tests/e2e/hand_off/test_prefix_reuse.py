"""Prefixes move between real processes; the test names the sources, as the router would."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.e2e.asking import TIMEOUT_S, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_BLOCKS = 20
PREFIX = prompt_of(NUM_BLOCKS * BLOCK_SIZE, seed=90)
WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a decode worker."""

    token_ids: tuple[int, ...]
    usage: common_pb2.Usage
    timings: common_pb2.Timings

    @property
    def sources(self) -> tuple[int, int, int, int]:
        """Prompt tokens: computed and found by the decode worker, transferred, of these fetched."""
        sources = self.usage.sources
        parts = (sources.computed, sources.local_hit, sources.transferred)
        assert sum(parts) == self.usage.prompt_tokens
        assert self.usage.cached_tokens == sources.local_hit + sources.transferred_hit
        return (*parts, sources.fetched)


class Driver:
    """Asks decode workers directly, naming prefill workers and sources."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.channels = {
            name: grpc.insecure_channel(cluster.addresses[name]) for name in cluster.workers
        }
        self.ids = {name: self._id(name) for name in cluster.workers}

    def ask(
        self,
        decode: str,
        prompt: Sequence[int],
        *,
        prefill: Sequence[str] = (),
        sources: Sequence[tuple[str, int]] = (),
        max_tokens: int = 12,
    ) -> Reply:
        """One greedy answer."""
        request = decode_pb2.DecodeRequest(
            request_id="r",
            token_ids=prompt,
            sampling=common_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            prefill_candidates=[
                decode_pb2.PrefillCandidate(
                    worker=self.ids[name], address=self.cluster.addresses[name]
                )
                for name in prefill
            ],
            prefix_sources=[
                common_pb2.PrefixSource(
                    worker=self.ids[name],
                    address=self.cluster.addresses[name],
                    num_blocks=num_blocks,
                )
                for name, num_blocks in sources
            ],
        )
        stub = decode_pb2_grpc.DecodeStub(self.channels[decode])
        pieces = list(stub.Generate(request, timeout=TIMEOUT_S))
        return Reply(
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            usage=pieces[-1].usage,
            timings=pieces[-1].timings,
        )

    def forget(self, *names: str) -> None:
        """Empty the caches of these workers."""
        self.cluster.wait_idle()
        for name in names:
            stub = worker_pb2_grpc.WorkerStub(self.channels[name])
            stub.ResetPrefixCache(worker_pb2.ResetPrefixCacheRequest(), timeout=10)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a worker's process a signal."""
        self.cluster.workers[name].popen.send_signal(number)

    def _id(self, name: str) -> common_pb2.WorkerId:
        stub = worker_pb2_grpc.WorkerStub(self.channels[name])
        return stub.GetInfo(worker_pb2.GetInfoRequest(), timeout=10).peer.worker


def start(checkpoint: Path, folder: Path, *flags: str) -> Cluster:
    """Two workers of each kind."""
    cluster = Cluster(checkpoint, folder)
    try:
        flags = (*ENGINE_FLAGS, "--reuse-policy", "always", *flags)
        for name in WORKERS:
            role = name.split("-")[0]
            own = ("--local-prefill-threshold", "0") if role == "decode" else ()
            cluster.add_worker(role, name, *flags, *own)
        cluster.wait_ready(num_prefill=2, num_decode=2)
    except BaseException:
        cluster.stop()
        raise
    return cluster


@pytest.fixture(scope="module", params=["shm", "zmq"])
def driver(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """Nobody breaks this cluster."""
    folder = tmp_path_factory.mktemp(f"reuse-{request.param}")
    cluster = start(
        checkpoint, folder, "--connectors", request.param, "--reuse-patience-ms", "20000"
    )
    try:
        yield Driver(cluster)
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.fixture
def fragile(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> Iterator[Driver]:
    """A cluster that the test may break; the parameter is its patience in milliseconds."""
    cluster = start(checkpoint, tmp_path, "--reuse-patience-ms", request.param)
    try:
        yield Driver(cluster)
    finally:
        for name in WORKERS:
            if name in cluster.workers and cluster.workers[name].popen.poll() is None:
                cluster.workers[name].popen.send_signal(signal.SIGCONT)
        cluster.stop()


def test_a_prefill_worker_fetches_what_another_one_computed(driver: Driver, oracle: LLM) -> None:
    driver.forget(*WORKERS)
    prompt = [*PREFIX, *prompt_of(30, seed=91)]
    driver.ask("decode-0", PREFIX, prefill=["prefill-0"])
    driver.forget("decode-0")
    reply = driver.ask(
        "decode-0", prompt, prefill=["prefill-1"], sources=[("prefill-0", NUM_BLOCKS)]
    )
    assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    assert reply.sources == (0, 0, len(prompt), len(PREFIX))
    assert (reply.timings.prefix_source, reply.timings.prefill_worker) == ("prefill-0", "prefill-1")
    assert reply.timings.prefix_fetch_bytes > 0
    driver.cluster.wait_idle()


def test_a_decode_worker_without_prefill_workers_fetches_by_itself(
    driver: Driver, oracle: LLM
) -> None:
    driver.forget(*WORKERS)
    prompt = [*PREFIX, *prompt_of(30, seed=92)]
    driver.ask("decode-0", PREFIX, prefill=["prefill-0"])
    reply = driver.ask("decode-1", prompt, sources=[("prefill-0", NUM_BLOCKS)])
    assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    assert reply.sources == (30, 0, len(PREFIX), len(PREFIX))
    driver.cluster.wait_idle()


def test_the_next_turn_of_a_chat_computes_only_what_is_new(driver: Driver, oracle: LLM) -> None:
    driver.forget(*WORKERS)
    turn, num_held = prompt_of(5 * BLOCK_SIZE, seed=93), 0
    for number in range(4):
        # The same decode worker, and a prefill worker that never saw what was answered.
        prefill = f"prefill-{number % 2}"
        reply = driver.ask("decode-0", turn, prefill=[prefill], max_tokens=3 * BLOCK_SIZE)
        assert reply.token_ids == expect(oracle, turn, max_tokens=3 * BLOCK_SIZE, temperature=0.0)
        if number:
            assert reply.sources == (0, num_held * BLOCK_SIZE, len(turn) - num_held * BLOCK_SIZE, 0)
            # The decode worker named itself: what its prefill worker lacked came from there.
            assert reply.timings.prefix_source == "decode-0"
        num_held = (len(turn) + len(reply.token_ids) - 1) // BLOCK_SIZE
        turn = [*turn, *reply.token_ids, *prompt_of(20, seed=94 + number)]
    elsewhere = driver.ask(
        "decode-1", turn, prefill=["prefill-0"], sources=[("decode-0", num_held)]
    )
    assert elsewhere.token_ids == expect(oracle, turn, max_tokens=12, temperature=0.0)
    assert elsewhere.usage.cached_tokens == num_held * BLOCK_SIZE
    assert elsewhere.timings.prefix_source == "decode-0"
    driver.cluster.wait_idle()


@pytest.mark.parametrize("fragile", ["400"], indirect=True)
def test_a_stopped_source_delays_and_is_left_alone(fragile: Driver, oracle: LLM) -> None:
    fragile.ask("decode-0", PREFIX, prefill=["prefill-0"])
    fragile.signal("prefill-0", signal.SIGSTOP)
    asked = []
    for number in range(3):
        prompt = [*PREFIX, *prompt_of(25, seed=100 + number)]
        reply = fragile.ask("decode-1", prompt, sources=[("prefill-0", NUM_BLOCKS)])
        assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
        assert reply.sources[3] == 0
        asked.append(reply.timings.prefix_fetch_ms > 0)
    # From the second request on the prefix is here, and nobody has to be asked.
    assert asked == [True, False, False]
    fragile.signal("prefill-0", signal.SIGCONT)
    fragile.cluster.wait_idle()


@pytest.mark.parametrize("fragile", ["20000"], indirect=True)
def test_a_source_that_is_killed_in_the_middle_costs_a_recomputation(
    fragile: Driver, oracle: LLM
) -> None:
    fragile.ask("decode-0", PREFIX, prefill=["prefill-0"])
    warm = fragile.ask("decode-1", PREFIX, sources=[("prefill-0", 2)])
    assert warm.sources[3] == 2 * BLOCK_SIZE
    fragile.forget("decode-1")
    fragile.signal("prefill-0", signal.SIGSTOP)
    prompt = [*PREFIX, *prompt_of(25, seed=110)]
    replies: list[Reply] = []
    thread = threading.Thread(
        target=lambda: replies.append(
            fragile.ask("decode-1", prompt, sources=[("prefill-0", NUM_BLOCKS)])
        )
    )
    thread.start()
    wait_until_fetching(fragile.cluster, "decode-1")
    fragile.cluster.workers.pop("prefill-0").kill()
    thread.join(TIMEOUT_S)
    (reply,) = replies
    assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    assert reply.sources == (len(prompt), 0, 0, 0)
    fragile.cluster.wait_idle()


def wait_until_fetching(cluster: Cluster, name: str) -> None:
    """Until a worker has opened a transfer."""
    deadline = time.monotonic() + 20
    while not cluster.load(name).num_open_transfers:
        assert time.monotonic() < deadline
        time.sleep(0.005)
