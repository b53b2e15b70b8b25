"""Blocks of weights that differ have nothing in common: not on disk, not by hash.

They differ in one bit, or are the same numbers in another format of a file.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import save_file

from shared.directory.base import BlockUpdate, WorkerRecord
from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory
from shared.engine.llm import LLM
from shared.identity import Role, WorkerId
from shared.kv.identity import KVIdentity
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.sampling_params import SamplingParams
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.stored.base import Writer

BLOCK_SIZE = 16
PROMPT = list(range(3, 3 + 4 * BLOCK_SIZE + 1))
NUM_TOKENS = 4 * BLOCK_SIZE


def one_bit(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint, and one that differs in the last bit of its last byte but one."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_random_checkpoint(ours, CheckpointSpec(seed=3, num_shards=2))
    shutil.copytree(ours, theirs)
    with sorted(theirs.glob("*.safetensors"))[-1].open("r+b") as file:
        file.seek(-2, 2)
        byte = file.read(1)[0]
        file.seek(-2, 2)
        file.write(bytes([byte ^ 1]))
    return ours, theirs


def stored_and_dense(writer: Writer, tmp_path: Path) -> tuple[Path, Path]:
    """A quantised checkpoint, and the numbers that it means in bfloat16."""
    plain, stored, dense = (tmp_path / name for name in ("plain", "stored", "dense"))
    write_random_checkpoint(plain, CheckpointSpec(seed=3))
    for folder in (stored, dense):
        shutil.copytree(plain, folder)
    tensors = quantise_checkpoint(plain, stored, writer, lambda name: "proj" in name)
    rounded = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(rounded, dense / "model.safetensors", metadata={"format": "pt"})
    return stored, dense


@pytest.fixture(params=["one bit", "awq", "ct w8a8"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two that differ."""
    if request.param == "one bit":
        return one_bit(tmp_path)
    return stored_and_dense(ALL[request.param], tmp_path)


def cached_tokens(model: Path, folder: Path) -> int:
    """Of the prompt, in a worker that starts with this folder; afterwards all of it is there."""
    llm = LLM(
        model,
        block_size=BLOCK_SIZE,
        num_blocks=32,
        kv_offload_host_gib=0.01,
        kv_offload_disk_dir=folder,
        kv_offload_disk_gib=0.1,
        kv_offload_always_load=True,
    )
    try:
        (output,) = llm.generate([PROMPT], SamplingParams(max_tokens=4, temperature=0.0))
        return output.num_cached_tokens
    finally:
        llm.close()


def test_a_folder_that_two_share_gives_no_block_to_the_other(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    ours, theirs = models
    folder = tmp_path / "blocks"
    assert cached_tokens(ours, folder) == 0
    assert cached_tokens(ours, folder) == NUM_TOKENS
    assert cached_tokens(theirs, folder) == 0
    assert cached_tokens(ours, folder) == NUM_TOKENS


async def test_what_one_publishes_the_other_does_not_find(models: tuple[Path, Path]) -> None:
    ours, theirs = (LLM(model, block_size=BLOCK_SIZE, num_blocks=32) for model in models)
    ours.generate([PROMPT], SamplingParams(max_tokens=4, temperature=0.0))
    registry = MemoryRegistry()
    blocks = MemoryBlockDirectory(registry)
    worker = WorkerId("ours", "1")
    record = WorkerRecord(
        worker=worker,
        role=Role.PREFILL,
        address="here:1",
        model="m",
        namespace=ours.engine.namespace.hex(),
        block_size=BLOCK_SIZE,
        num_blocks=32,
        max_model_len=512,
    )
    await registry.register(record, 60)
    stored = [key for change in ours.engine.take_cache_changes() for key in change.stored]
    await blocks.publish(BlockUpdate(worker=worker, sequence=1, stored=stored))
    for llm, expected in ((ours, {worker: 4}), (theirs, {})):
        hashes = KVIdentity(llm.engine.namespace).hash_blocks(PROMPT, BLOCK_SIZE)
        assert await blocks.lookup(hashes) == expected
    assert ours.engine.model_fingerprint != theirs.engine.model_fingerprint
    for llm in (ours, theirs):
        llm.close()
