"""Whoever is told to end does so in time, and loses nothing that somebody waits for."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest

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
from shared.kv.identity import KVIdentity
from tests.e2e.asking import GREEDY, Reply, ask, prompt_of, until
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS, add_decode
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM


def test_what_a_stopped_worker_cannot_finish_is_ended_as_draining_and_stays_readable(
    bare_cluster: Cluster,
) -> None:
    """Who goes on with it finds its KV there, generated tokens included."""
    add_decode(bare_cluster, "decode-0", "--drain-mode", "move", "--drain-grace-s", "20")
    bare_cluster.wait_ready(num_prefill=0)
    prompt = prompt_of(40, seed=61)
    request = decode_pb2.DecodeRequest(
        request_id="r",
        token_ids=prompt,
        sampling=common_pb2.SamplingParams(max_tokens=1900, ignore_eos=True),
    )
    process = bare_cluster.workers["decode-0"].popen
    with grpc.insecure_channel(bare_cluster.addresses["decode-0"]) as channel:
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
        hashes = KVIdentity(bytes.fromhex(info.peer.namespace)).hash_blocks(tokens, BLOCK_SIZE)
        lookup = transfer_pb2.LookupRequest(block_hashes=hashes)
        held = transfer_pb2_grpc.TransferStub(channel).Lookup(lookup, timeout=5).num_blocks
        # KV of the last token that was given out is computed with the next one.
        assert held >= (len(tokens) - 1) // BLOCK_SIZE
        assert held > len(prompt) // BLOCK_SIZE
    assert process.wait(30) == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_draining_one_of_two_under_load_loses_nothing(
    bare_cluster: Cluster, oracle: LLM, role: str
) -> None:
    names = {"prefill": ["prefill-0"], "decode": ["decode-0"]}
    names[role].append(f"{role}-1")
    for name in names["prefill"]:
        bare_cluster.add_worker("prefill", name, *ENGINE_FLAGS)
    for name in names["decode"]:
        add_decode(bare_cluster, name)
    bare_cluster.wait_ready(num_prefill=len(names["prefill"]), num_decode=len(names["decode"]))
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
                replies.append((prompt, ask(bare_cluster, prompt, max_tokens=24, **GREEDY)))
            except grpc.RpcError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=load, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    until(lambda: len(replies) > len(prompts) and bare_cluster.load(leaving).num_requests > 0)
    code = bare_cluster.workers[leaving].stop()
    stopped.set()
    for thread in threads:
        thread.join(60)
    assert code == 0
    assert errors == []
    assert sum(thread.is_alive() for thread in threads) == 0
    expected = {tuple(p): expect(oracle, p, max_tokens=24, temperature=0.0) for p in prompts}
    for prompt, reply in replies:
        assert reply.token_ids == expected[tuple(prompt)]
    del bare_cluster.workers[leaving]
    bare_cluster.wait_idle()


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
