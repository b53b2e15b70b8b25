"""What a worker tells the directory about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.worker.live_worker import live_worker

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_stretched_context_is_announced_and_served(tmp_path: Path) -> None:
    """The config names the length before it is stretched."""
    scaling = {"rope_scaling": {"type": "yarn", "factor": 4.0}}
    spec = CheckpointSpec(max_position_embeddings=64, vocab_size=321, extra=scaling)
    write_random_checkpoint(tmp_path / "model", spec)
    async with live_worker(tmp_path / "model", "a", runtime_dir=tmp_path) as worker:
        assert worker.parts.record(worker.address).max_model_len == 256
        assert worker.parts.describe().max_model_len == 256
        reply = await worker.ask([5 + i % 300 for i in range(200)], max_tokens=8)
        assert len(reply.token_ids) == 8
