"""A small checkpoint, and one engine that does it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.llm import LLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.worker.live_worker import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, and three query heads for each of two key/value heads."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    spec = CheckpointSpec(
        architecture="qwen3",
        num_layers=2,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=160,
        vocab_size=321,
        max_position_embeddings=2048,
        dtype="float32",
        seed=7,
    )
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="session")
def oracle(checkpoint: Path) -> LLM:
    """What everybody must answer like."""
    return LLM(
        checkpoint,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=256,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    )
