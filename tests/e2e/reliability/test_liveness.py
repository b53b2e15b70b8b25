"""What stops or hangs costs time, and no answer."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import common_pb2, decode_pb2, decode_pb2_grpc, router_pb2
from tests.e2e.asking import GREEDY, Asking, ask, prompt_of, until
from tests.e2e.conftest import ENGINE_FLAGS, STALL_S, add_decode
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster


@pytest.mark.parametrize("state", ["queued", "prefilling", "first token out"])
def test_a_stopped_prefill_worker_is_given_up_long_before_the_deadline(
    bare_cluster: Cluster, oracle: LLM, state: str
) -> None:
    bare_cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, "--max-num-seqs", "1")
    add_decode(bare_cluster)
    bare_cluster.wait_ready()
    prefill = bare_cluster.workers["prefill-0"].popen
    prompt = prompt_of(1500, seed=31)
    others = [Asking(bare_cluster, prompt_of(1500, seed=32), 4)] if state == "queued" else []
    if others:
        until(lambda: bare_cluster.load("prefill-0").num_running > 0)
    if state == "first token out":
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
            params=router_pb2.GenerationParams(max_tokens=12, **GREEDY),
        )
        pieces = bare_cluster.router_stub().Generate(request, timeout=50)
        tokens = list(next(pieces).token_ids)
        prefill.send_signal(signal.SIGSTOP)
        tokens += [token for piece in pieces for token in piece.token_ids]
    else:
        asking = Asking(bare_cluster, prompt, 12)
        load = "num_waiting" if state == "queued" else "num_running"
        until(lambda: getattr(bare_cluster.load("prefill-0"), load) > 0)
        prefill.send_signal(signal.SIGSTOP)
        reply = asking.result()
        assert reply.usage.sources.computed == len(prompt)
        tokens = list(reply.token_ids)
    assert tuple(tokens) == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    for other in others:
        other.result()
    prefill.send_signal(signal.SIGCONT)
    bare_cluster.wait_idle(timeout_s=20)


def test_a_prefill_that_takes_long_is_waited_for(bare_cluster: Cluster, tmp_path: Path) -> None:
    """Silence of the engine is no silence of the worker, as long as nobody calls it stuck."""
    stuck = tmp_path / "stuck"
    bare_cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, stuck_file=stuck)
    add_decode(bare_cluster)
    bare_cluster.wait_ready()
    stuck.touch()
    asking = Asking(bare_cluster, prompt_of(300, seed=33), 4)
    until(lambda: bare_cluster.load("prefill-0").num_requests > 0)
    time.sleep(3 * STALL_S)  # this is the fault, not a wait for something
    stuck.unlink()
    assert asking.result().usage.sources.transferred == 300
    ok = bare_cluster.metric("decode-0", "baton_hand_off_attempts_total", outcome="ok")
    assert ok == bare_cluster.metric("decode-0", "baton_hand_off_attempts_total") == 1


def test_a_prefill_worker_that_was_given_up_rests(bare_cluster: Cluster, oracle: LLM) -> None:
    """Whoever comes next does not wait for it, and it is tried again when it is back."""
    bare_cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
    add_decode(bare_cluster)
    bare_cluster.wait_ready()
    ask(bare_cluster, prompt_of(40), max_tokens=2, **GREEDY)
    prefill = bare_cluster.workers["prefill-0"].popen
    prefill.send_signal(signal.SIGSTOP)
    prompts = [prompt_of(200, seed=40 + i) for i in range(4)]
    askings = [Asking(bare_cluster, prompt, 4) for prompt in prompts]
    for prompt, asking in zip(prompts, askings, strict=True):
        expected = expect(oracle, prompt, max_tokens=4, temperature=0.0)
        assert asking.result().token_ids == expected

    def events(event: str) -> float:
        name = "baton_peer_breaker_events_total"
        return bare_cluster.metric("decode-0", name, purpose="prefill", event=event)

    assert events("opened") == 1
    prefill.send_signal(signal.SIGCONT)

    def is_tried_again() -> bool:
        ask(bare_cluster, prompt_of(60, seed=int(time.monotonic() * 1e3)), max_tokens=2, **GREEDY)
        return events("closed") == 1

    until(is_tried_again)
    assert bare_cluster.metric("decode-0", "baton_peers_left_alone", purpose="prefill") == 0


def serving(cluster: Cluster, name: str) -> bool:
    with grpc.insecure_channel(cluster.addresses[name]) as channel:
        request = health_pb2.HealthCheckRequest(service="baton.v1.Decode")
        response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return response.status == health_pb2.HealthCheckResponse.SERVING


def test_a_stuck_engine_leaves_ready_and_returns(
    bare_cluster: Cluster, oracle: LLM, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    add_decode(bare_cluster, "decode-0", "--engine-stall-s", "1", stuck_file=stuck)
    bare_cluster.wait_ready(num_prefill=0)
    prompt = prompt_of(40, seed=51)
    ask(bare_cluster, prompt, max_tokens=2, **GREEDY)
    request = decode_pb2.DecodeRequest(
        request_id="r",
        token_ids=prompt,
        sampling=common_pb2.SamplingParams(max_tokens=500, ignore_eos=True),
    )
    with grpc.insecure_channel(bare_cluster.addresses["decode-0"]) as channel:
        pieces = decode_pb2_grpc.DecodeStub(channel).Generate(request, timeout=60)
        next(pieces)
        stuck.touch()
        with pytest.raises(grpc.RpcError) as caught:
            list(pieces)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "makes no progress" in str(caught.value.details())
    until(lambda: not serving(bare_cluster, "decode-0"))
    assert bare_cluster.load("decode-0").unhealthy
    until(lambda: not bare_cluster.is_ready())
    # Its lease lives: it is there, and not well.
    assert bare_cluster.num_workers() == (0, 1)
    stuck.unlink()
    until(lambda: serving(bare_cluster, "decode-0"))
    until(bare_cluster.is_ready)
    reply = ask(bare_cluster, prompt, max_tokens=10, **GREEDY)
    assert reply.token_ids == expect(oracle, prompt, max_tokens=10, temperature=0.0)
    bare_cluster.wait_idle()
    assert bare_cluster.metric("decode-0", "baton_worker_failures_total", reason="stuck") == 1
