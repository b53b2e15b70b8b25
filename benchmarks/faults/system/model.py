"""The model that the matrix serves, tiny and random, and the flags of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

MODEL_NAME = "tiny"
BLOCK_SIZE = 16
#: Small chunks, so that a victim's prompt is computed and sent in many.
MAX_NUM_BATCHED_TOKENS = 64
DTYPE = "float32"

ENGINE_FLAGS = (
    "--block-size", str(BLOCK_SIZE),
    "--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS),
    "--max-num-seqs", "32",
    "--dtype", DTYPE,
    "--num-threads", "1",
)  # fmt: skip


DRAIN_GRACE_S = 15.0
WORKER_FLAGS = (
    *ENGINE_FLAGS,
    "--connectors", "zmq",
    # As `baton up` starts them: a victim has lent or borrowed cores.
    "--core-lease", "auto",
    "--transfer-timeout-s", "8",
    "--drain-grace-s", str(DRAIN_GRACE_S),
)  # fmt: skip
#: As `baton up` starts them.
NICENESS = {"prefill": 10}
OWN_FLAGS = {
    "prefill": ("--niceness", str(NICENESS["prefill"])),
    "decode": ("--local-prefill-threshold", "0"),
}


def write_model(folder: Path) -> Path:
    """Write it below `folder`, unless it is there."""
    path = folder / MODEL_NAME
    if not (path / "config.json").exists():
        spec = CheckpointSpec(
            architecture="qwen3",
            num_layers=2,
            hidden_size=96,
            num_heads=6,
            num_kv_heads=2,
            head_dim=80,
            intermediate_size=160,
            vocab_size=321,
            max_position_embeddings=2048,
            dtype="float32",
            seed=7,
        )
        write_random_checkpoint(path, spec)
    return path
