"""Quantised checkpoints across the hand-off: the answers of the dense model that they mean."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import save_file

from shared.engine.llm import LLM
from tests.e2e.asking import ask, prompt_of, shake_hands, until
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS, MAX_NUM_BATCHED_TOKENS, NUM_BLOCKS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.integers import Awq

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def models(checkpoint: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A quantised checkpoint, and the dense one that it means."""
    stored, dense = tmp_path / "stored", tmp_path / "dense"
    for folder in (stored, dense):
        shutil.copytree(checkpoint, folder)
    tensors = quantise_checkpoint(checkpoint, stored, Awq(), lambda name: "proj" in name)
    save_file(tensors, dense / "model.safetensors", metadata={"format": "pt"})
    return stored, dense


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
        cluster.add_worker("prefill", "prefill-1", *ENGINE_FLAGS, model=dense)
        until(lambda: cluster.num_workers() == (2, 1))
        assert "model_fingerprint" in str(shake_hands(cluster, "prefill-1").details())
    finally:
        codes = cluster.stop()
        oracle.close()
    assert set(codes.values()) == {0}
