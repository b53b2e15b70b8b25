"""A part dies or refuses: the answer is the same, or the error is clear, and nothing leaks."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import (
    common_pb2,
    router_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.asking import ask, prompt_of, until
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM


@pytest.fixture
def own_cluster(checkpoint: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may break."""
    cluster = Cluster(checkpoint, tmp_path)
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        cluster.add_worker(
            "decode", "decode-0", *ENGINE_FLAGS,
            "--local-prefill-threshold", "0", "--transfer-timeout-s", "4",
        )  # fmt: skip
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()


def ask_in_background(
    cluster: Cluster, prompt: list[int], replies: list[object]
) -> threading.Thread:
    """Ask from a thread; the reply, or the exception, is appended."""

    def run() -> None:
        try:
            replies.append(ask(cluster, prompt, max_tokens=20, temperature=0.0, ignore_eos=True))
        except grpc.RpcError as error:
            replies.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_prefill_worker_costs_time_only(
    own_cluster: Cluster, oracle: LLM, fault: signal.Signals
) -> None:
    prompt = prompt_of(1500, seed=21)
    replies: list[object] = []
    thread = ask_in_background(own_cluster, prompt, replies)
    wait_until_prefilling(own_cluster)
    own_cluster.workers["prefill-0"].popen.send_signal(fault)
    thread.join(60)
    if fault is signal.SIGSTOP:
        own_cluster.workers["prefill-0"].popen.send_signal(signal.SIGCONT)
    (reply,) = replies
    assert not isinstance(reply, grpc.RpcError), reply
    assert reply.token_ids == expect(oracle, prompt, max_tokens=20, temperature=0.0)  # type: ignore[attr-defined]
    assert reply.usage.sources.computed == len(prompt)  # type: ignore[attr-defined]
    own_cluster.workers["prefill-0"].kill()
    del own_cluster.workers["prefill-0"]
    own_cluster.wait_idle()


def wait_until_prefilling(cluster: Cluster) -> None:
    """Until the prefill worker computes something."""
    deadline = time.monotonic() + 20
    while not cluster.load("prefill-0").num_running:
        assert time.monotonic() < deadline, "the prefill worker never started"
        time.sleep(0.01)


def test_no_prefill_worker_at_all(checkpoint: Path, oracle: LLM, tmp_path: Path) -> None:
    cluster = Cluster(checkpoint, tmp_path)
    try:
        cluster.add_worker("decode", "decode-0", *ENGINE_FLAGS)
        cluster.wait_ready(num_prefill=0)
        prompt = prompt_of(100, seed=22)
        reply = ask(cluster, prompt, max_tokens=10, temperature=0.0, ignore_eos=True)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=10, temperature=0.0)
        assert reply.usage.sources.computed == 100
    finally:
        cluster.stop()


def test_a_prefill_worker_goes_on_for_the_last_decode_worker(
    own_cluster: Cluster, oracle: LLM
) -> None:
    prompt = prompt_of(1500, seed=23)
    replies: list[object] = []
    thread = ask_in_background(own_cluster, prompt, replies)
    wait_until_prefilling(own_cluster)
    own_cluster.workers["decode-0"].kill()
    thread.join(60)
    (reply,) = replies
    assert not isinstance(reply, grpc.RpcError), reply
    assert reply.token_ids == expect(oracle, prompt, max_tokens=20, temperature=0.0)  # type: ignore[attr-defined]
    assert reply.usage.num_replays == 1  # type: ignore[attr-defined]
    del own_cluster.workers["decode-0"]
    own_cluster.wait_idle()
    # Without any worker the error is clear.
    own_cluster.workers["prefill-0"].kill()
    replies.clear()
    ask_in_background(own_cluster, prompt, replies).join(60)
    (error,) = replies
    assert isinstance(error, grpc.Call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_other_weights_are_refused_by_name(
    own_cluster: Cluster, oracle: LLM, tmp_path: Path
) -> None:
    """I14: the handshake says what differs, and the decode worker computes the prompt itself."""
    other = tmp_path / "other"
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=2, hidden_size=96, num_heads=6, num_kv_heads=2,
        head_dim=80, intermediate_size=160, vocab_size=321, max_position_embeddings=2048,
        dtype="float32", seed=8,
    )  # fmt: skip
    write_random_checkpoint(other, spec)
    own_cluster.workers["prefill-0"].stop()
    del own_cluster.workers["prefill-0"]
    own_cluster.add_worker("prefill", "prefill-1", *ENGINE_FLAGS, model=other)
    # The router knows of it, and does not send anything there.
    until(lambda: own_cluster.num_workers() == (1, 1))
    own_cluster.wait_ready(num_prefill=0)
    prompt = prompt_of(80, seed=24)
    reply = ask(own_cluster, prompt, max_tokens=10, temperature=0.0, ignore_eos=True)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=10, temperature=0.0)
    assert reply.usage.sources.computed == 80
    with (
        grpc.insecure_channel(own_cluster.addresses["decode-0"]) as ours,
        grpc.insecure_channel(own_cluster.addresses["prefill-1"]) as theirs,
    ):
        info = worker_pb2_grpc.WorkerStub(ours).GetInfo(worker_pb2.GetInfoRequest(), timeout=5)
        with pytest.raises(grpc.RpcError) as refusal:
            transfer_pb2_grpc.TransferStub(theirs).Handshake(
                transfer_pb2.HandshakeRequest(peer=info.peer), timeout=5
            )
    assert isinstance(refusal.value, grpc.Call)
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "model_fingerprint" in str(refusal.value.details())


def test_a_terminated_cluster_ends_with_zero(own_cluster: Cluster) -> None:
    ask(own_cluster, prompt_of(20), max_tokens=2, temperature=0.0)
    assert set(own_cluster.stop().values()) == {0}


def test_a_draining_worker_finishes_what_it_has(own_cluster: Cluster) -> None:
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt_of(30))),
        params=router_pb2.GenerationParams(max_tokens=200, temperature=0.0, ignore_eos=True),
    )
    pieces = own_cluster.router_stub().Generate(request, timeout=60)
    next(pieces)
    own_cluster.workers["decode-0"].popen.send_signal(signal.SIGTERM)
    tokens = [token for piece in pieces for token in piece.token_ids]
    assert len(tokens) == 199
    assert own_cluster.workers["decode-0"].popen.wait(30) == 0
