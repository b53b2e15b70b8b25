"""I1 and I14 with KV in 8 bits: what crosses between workers is all that decoding needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from shared.engine.llm import LLM
from tests.e2e.asking import ask, prompt_of, shake_hands, until
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS, MAX_NUM_BATCHED_TOKENS, NUM_BLOCKS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from pathlib import Path


def in_process(checkpoint: Path, kv_cache_dtype: str) -> LLM:
    return LLM(
        checkpoint,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        kv_cache_dtype=kv_cache_dtype,
    )


@pytest.mark.parametrize(
    ("kv_cache_dtype", "connector", "block_size"), [("int8", "shm", BLOCK_SIZE), ("fp8", "zmq", 32)]
)
def test_answers_are_equal(
    kv_cache_dtype: str, connector: str, block_size: int, checkpoint: Path, tmp_path: Path
) -> None:
    """The decode worker's blocks may be larger."""
    oracle = in_process(checkpoint, kv_cache_dtype)
    cluster = Cluster(checkpoint, tmp_path)
    flags = (*ENGINE_FLAGS, "--connectors", connector, "--kv-cache-dtype", kv_cache_dtype)
    try:
        cluster.add_worker("prefill", "prefill-0", *flags)
        own = ("--local-prefill-threshold", "0", "--block-size", str(block_size))
        cluster.add_worker("decode", "decode-0", *flags, *own)
        cluster.wait_ready()
        for length in (1, BLOCK_SIZE + 1, 5 * BLOCK_SIZE + 3, 3 * MAX_NUM_BATCHED_TOKENS + 5):
            prompt = prompt_of(length)
            # The second time, both workers have most of it in their caches.
            for params in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3}):
                reply = ask(cluster, prompt, max_tokens=40, ignore_eos=True, **params)
                assert reply.token_ids == expect(oracle, prompt, max_tokens=40, **params)
                assert reply.timings.prefill_worker == "prefill-0"
        cluster.wait_idle()
    finally:
        codes = cluster.stop()
        oracle.close()
    assert set(codes.values()) == {0}


def test_workers_with_other_kv_refuse_each_other_by_name(checkpoint: Path, tmp_path: Path) -> None:
    """The decode worker computes the prompt itself."""
    oracle = in_process(checkpoint, "int8")
    cluster = Cluster(checkpoint, tmp_path)
    own = ("--kv-cache-dtype", "int8", "--local-prefill-threshold", "0")
    try:
        cluster.add_worker("decode", "decode-0", *ENGINE_FLAGS, *own)
        cluster.wait_ready(num_prefill=0)
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        until(lambda: cluster.num_workers() == (1, 1))
        prompt = prompt_of(70)
        reply = ask(cluster, prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=8, temperature=0.0)
        assert not reply.timings.connector
        refusal = shake_hands(cluster, "prefill-0")
        assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "layout.dtype" in str(refusal.details())
    finally:
        cluster.stop()
        oracle.close()
