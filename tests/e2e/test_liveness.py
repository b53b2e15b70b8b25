"""What stops, hangs or is told to end costs time, and no answer."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    router_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from shared.kv.block_hash import hash_blocks, root_hash
from tests.e2e.asking import Reply, ask, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

#: Far less than the 60 s that a hand-off may take in all.
STALL_S = 1.5
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def cluster(checkpoint: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A router; the test adds its workers."""
    made = Cluster(checkpoint, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def add_decode(cluster: Cluster, name: str = "decode-0", *flags: str, **more: Path) -> None:
    cluster.add_worker(
        "decode", name, *ENGINE_FLAGS, "--local-prefill-threshold", "0",
        "--transfer-stall-s", str(STALL_S), "--metrics-port", str(free_port()), *flags, **more,
    )  # fmt: skip


class Asking:
    """A request under way in a thread."""

    def __init__(self, cluster: Cluster, prompt: list[int], max_tokens: int) -> None:
        self.reply: Reply | None = None
        self.error: grpc.RpcError | None = None

        def run() -> None:
            try:
                self.reply = ask(cluster, prompt, max_tokens=max_tokens, **GREEDY)
            except grpc.RpcError as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def result(self) -> Reply:
        self._thread.join(90)
        assert self.reply is not None, self.error
        return self.reply


def until(condition: Callable[[], bool]) -> None:
    """Fail unless it becomes true in time."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("state", ["queued", "prefilling", "first token out"])
def test_a_stopped_prefill_worker_is_given_up_long_before_the_deadline(
    cluster: Cluster, oracle: LLM, state: str
) -> None:
    cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, "--max-num-seqs", "1")
    add_decode(cluster)
    cluster.wait_ready()
    prefill = cluster.workers["prefill-0"].popen
    prompt = prompt_of(1500, seed=31)
    others = [Asking(cluster, prompt_of(1500, seed=32), 4)] if state == "queued" else []
    if others:
        until(lambda: cluster.load("prefill-0").num_running > 0)
    if state == "first token out":
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
            params=router_pb2.GenerationParams(max_tokens=12, **GREEDY),
        )
        pieces = cluster.router_stub().Generate(request, timeout=50)
        tokens = list(next(pieces).token_ids)
        prefill.send_signal(signal.SIGSTOP)
        tokens += [token for piece in pieces for token in piece.token_ids]
    else:
        asking = Asking(cluster, prompt, 12)
        load = "num_waiting" if state == "queued" else "num_running"
        until(lambda: getattr(cluster.load("prefill-0"), load) > 0)
        prefill.send_signal(signal.SIGSTOP)
        reply = asking.result()
        assert reply.usage.sources.computed == len(prompt)
        tokens = list(reply.token_ids)
    assert tuple(tokens) == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    for other in others:
        other.result()
    prefill.send_signal(signal.SIGCONT)
    cluster.wait_idle(timeout_s=20)


def test_a_prefill_that_takes_long_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """Silence of the engine is no silence of the worker, as long as nobody calls it stuck."""
    stuck = tmp_path / "stuck"
    cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, stuck_file=stuck)
    add_decode(cluster)
    cluster.wait_ready()
    stuck.touch()
    asking = Asking(cluster, prompt_of(300, seed=33), 4)
    until(lambda: cluster.load("prefill-0").num_requests > 0)
    time.sleep(3 * STALL_S)  # this is the fault, not a wait for something
    stuck.unlink()
    assert asking.result().usage.sources.transferred == 300
    ok = cluster.metric("decode-0", "baton_hand_off_attempts_total", outcome="ok")
    assert ok == cluster.metric("decode-0", "baton_hand_off_attempts_total") == 1


def test_a_prefill_worker_that_was_given_up_rests(cluster: Cluster, oracle: LLM) -> None:
    """Whoever comes next does not wait for it, and it is tried again when it is back."""
    cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
    add_decode(cluster)
    cluster.wait_ready()
    ask(cluster, prompt_of(40), max_tokens=2, **GREEDY)
    prefill = cluster.workers["prefill-0"].popen
    prefill.send_signal(signal.SIGSTOP)
    prompts = [prompt_of(200, seed=40 + i) for i in range(4)]
    askings = [Asking(cluster, prompt, 4) for prompt in prompts]
    for prompt, asking in zip(prompts, askings, strict=True):
        expected = expect(oracle, prompt, max_tokens=4, temperature=0.0)
        assert asking.result().token_ids == expected

    def events(event: str) -> float:
        name = "baton_peer_breaker_events_total"
        return cluster.metric("decode-0", name, purpose="prefill", event=event)

    assert events("opened") == 1
    prefill.send_signal(signal.SIGCONT)

    def is_tried_again() -> bool:
        ask(cluster, prompt_of(60, seed=int(time.monotonic() * 1e3)), max_tokens=2, **GREEDY)
        return events("closed") == 1

    until(is_tried_again)
    assert cluster.metric("decode-0", "baton_peers_left_alone", purpose="prefill") == 0


def serving(cluster: Cluster, name: str) -> bool:
    with grpc.insecure_channel(cluster.addresses[name]) as channel:
        request = health_pb2.HealthCheckRequest(service="baton.v1.Decode")
        response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return response.status == health_pb2.HealthCheckResponse.SERVING


def test_a_stuck_engine_leaves_ready_and_returns(
    cluster: Cluster, oracle: LLM, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    add_decode(cluster, "decode-0", "--engine-stall-s", "1", stuck_file=stuck)
    cluster.wait_ready(num_prefill=0)
    prompt = prompt_of(40, seed=51)
    ask(cluster, prompt, max_tokens=2, **GREEDY)
    request = decode_pb2.DecodeRequest(
        request_id="r",
        token_ids=prompt,
        sampling=common_pb2.SamplingParams(max_tokens=500, ignore_eos=True),
    )
    with grpc.insecure_channel(cluster.addresses["decode-0"]) as channel:
        pieces = decode_pb2_grpc.DecodeStub(channel).Generate(request, timeout=60)
        next(pieces)
        stuck.touch()
        with pytest.raises(grpc.RpcError) as caught:
            list(pieces)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "makes no progress" in str(caught.value.details())
    until(lambda: not serving(cluster, "decode-0"))
    assert cluster.load("decode-0").unhealthy
    until(lambda: not cluster.is_ready())
    # Its lease lives: it is there, and not well.
    assert cluster.num_workers() == (0, 1)
    stuck.unlink()
    until(lambda: serving(cluster, "decode-0"))
    until(cluster.is_ready)
    reply = ask(cluster, prompt, max_tokens=10, **GREEDY)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=10, temperature=0.0)
    cluster.wait_idle()
    assert cluster.metric("decode-0", "baton_worker_failures_total", reason="stuck") == 1


def test_what_a_stopped_worker_cannot_finish_is_ended_as_draining_and_stays_readable(
    cluster: Cluster,
) -> None:
    """Who goes on with it finds its KV there, generated tokens included."""
    add_decode(cluster, "decode-0", "--drain-mode", "move", "--drain-grace-s", "20")
    cluster.wait_ready(num_prefill=0)
    prompt = prompt_of(40, seed=61)
    request = decode_pb2.DecodeRequest(
        request_id="r",
        token_ids=prompt,
        sampling=common_pb2.SamplingParams(max_tokens=1900, ignore_eos=True),
    )
    process = cluster.workers["decode-0"].popen
    with grpc.insecure_channel(cluster.addresses["decode-0"]) as channel:
        info = worker_pb2_grpc.WorkerStub(channel).GetInfo(worker_pb2.GetInfoRequest(), timeout=5)
        pieces = decode_pb2_grpc.DecodeStub(channel).Generate(request, timeout=60)
        tokens = list(prompt)
        with pytest.raises(grpc.RpcError) as caught:  # noqa: PT012 the loop is what raises
            for piece in pieces:
                tokens += piece.token_ids
                if len(tokens) > 100 and process.poll() is None:
                    process.send_signal(signal.SIGTERM)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ("baton-error", "DrainingError") in list(caught.value.trailing_metadata())
        hashes = hash_blocks(root_hash(bytes.fromhex(info.peer.namespace)), tokens, BLOCK_SIZE)
        lookup = transfer_pb2.LookupRequest(block_hashes=hashes)
        held = transfer_pb2_grpc.TransferStub(channel).Lookup(lookup, timeout=5).num_blocks
        # KV of the last token that was given out is computed with the next one.
        assert held >= (len(tokens) - 1) // BLOCK_SIZE
        assert held > len(prompt) // BLOCK_SIZE
    assert process.wait(30) == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_draining_one_of_two_under_load_loses_nothing(
    cluster: Cluster, oracle: LLM, role: str
) -> None:
    names = {"prefill": ["prefill-0"], "decode": ["decode-0"]}
    names[role].append(f"{role}-1")
    for name in names["prefill"]:
        cluster.add_worker("prefill", name, *ENGINE_FLAGS)
    for name in names["decode"]:
        add_decode(cluster, name)
    cluster.wait_ready(num_prefill=len(names["prefill"]), num_decode=len(names["decode"]))
    prompts = [prompt_of(120 + i, seed=70 + i) for i in range(6)]
    leaving = f"{role}-0"
    replies: list[tuple[list[int], Reply]] = []
    stopped = threading.Event()

    errors: list[grpc.RpcError] = []

    def load(prompt: list[int]) -> None:
        is_last = False
        while not is_last:
            is_last = stopped.is_set()
            try:
                replies.append((prompt, ask(cluster, prompt, max_tokens=24, **GREEDY)))
            except grpc.RpcError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=load, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    until(lambda: len(replies) > len(prompts) and cluster.load(leaving).num_requests > 0)
    code = cluster.workers[leaving].stop()
    stopped.set()
    for thread in threads:
        thread.join(60)
    assert code == 0
    assert errors == []
    assert sum(thread.is_alive() for thread in threads) == 0
    expected = {tuple(p): expect(oracle, p, max_tokens=24, temperature=0.0) for p in prompts}
    for prompt, reply in replies:
        assert reply.token_ids == expected[tuple(prompt)]
    del cluster.workers[leaving]
    cluster.wait_idle()


def test_a_stopped_router_finishes_its_streams_and_ends_within_its_grace(
    checkpoint: Path, tmp_path: Path
) -> None:
    cluster = Cluster(checkpoint, tmp_path, router_flags=("--drain-grace-s", "8"))
    try:
        add_decode(cluster)
        cluster.wait_ready(num_prefill=0)
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt_of(20))),
            params=router_pb2.GenerationParams(max_tokens=100, **GREEDY),
        )
        body = {"model": checkpoint.name, "prompt": prompt_of(20), "max_tokens": 100,
                "ignore_eos": True, "stream": True}  # fmt: skip
        pieces = cluster.router_stub().Generate(request, timeout=60)
        num_tokens = len(next(pieces).token_ids)
        with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            cluster.router.terminate()
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert num_tokens + sum(len(piece.token_ids) for piece in pieces) == 100
        assert cluster.router.popen.wait(30) == 0
        cluster.wait_idle()
    finally:
        cluster.stop()
