"""Quantised checkpoints across the hand-off: the answers of the dense model that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.llm import LLM
from tests.e2e.asking import ask, prompt_of, shake_hands, until
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS, MAX_NUM_BATCHED_TOKENS, NUM_BLOCKS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.fakes.stored.named import NAMED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint that a document names, and the dense one that it means."""
    (named,) = (each for each in NAMED if each.name == "Qwen/Qwen1.5-32B-Chat-AWQ")
    return named.write(tmp_path)


def test_answers_are_those_of_the_dense_model(models: tuple[Path, Path], tmp_path: Path) -> None:
    """Whose prefill worker is refused by name: its file is another, however equal its numbers."""
    stored, dense = models
    oracle = LLM(
        dense,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )
    cluster = Cluster(stored, tmp_path)
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        cluster.add_worker("decode", "decode-0", *ENGINE_FLAGS, "--local-prefill-threshold", "0")
        cluster.wait_ready()
        for length in (1, BLOCK_SIZE + 1, 3 * MAX_NUM_BATCHED_TOKENS + 5):
            prompt = prompt_of(length)
            reply = ask(cluster, prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
            assert reply.token_ids == expect(oracle, prompt, max_tokens=24, temperature=0.0)
            assert reply.timings.prefill_worker == "prefill-0"
        bfloat16 = (*ENGINE_FLAGS, "--dtype", "bfloat16")
        cluster.add_worker("prefill", "prefill-1", *bfloat16, model=dense)
        until(lambda: cluster.num_workers() == (2, 1))
        assert "model_fingerprint" in str(shake_hands(cluster, "prefill-1").details())
    finally:
        codes = cluster.stop()
        oracle.close()
    assert set(codes.values()) == {0}
