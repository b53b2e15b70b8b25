"""Packed blocks on disk: the same blocks in shorter files, beside files of earlier versions."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kernels.bf16_stream import HEADER_BYTES as STREAM_HEADER_BYTES
from shared.connector.protocol.block_copy import checksum_blocks
from shared.engine.offload.disk.block_file import HEADER_BYTES, CorruptBlockError
from shared.engine.offload.disk.block_folder import BlockFolder
from shared.kv.identity import HASH_BYTES
from shared.kv.layout import KVLayout
from shared.kv.tier import BlockTier
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.engine.offload import settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from shared.engine.engine import Engine

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=2, block_size=16, head_dim=32, dtype="bfloat16")
NAMESPACE = bytes(32)
KEYS = [bytes([number]) * HASH_BYTES for number in range(4)]


def block(number: int, layout: KVLayout = LAYOUT) -> NDArray[np.uint8]:
    rng = np.random.default_rng(number)
    numbers = rng.standard_normal(layout.block_bytes // 2).astype("<f4").view("<u4") >> 16
    return numbers.astype("<u2").view(np.uint8)


def open_folder(path: Path, *, packs: bool = True, layout: KVLayout = LAYOUT) -> BlockFolder:
    return BlockFolder.open(path, NAMESPACE, layout, packs=packs)


def write(folder: BlockFolder, number: int, data: NDArray[np.uint8] | None = None) -> int:
    data = block(number) if data is None else data
    return folder.write(KEYS[number], data, int(checksum_blocks([data])[0]), used_at_s=number)


def check(folder: BlockFolder, number: int, data: NDArray[np.uint8] | None = None) -> None:
    out = np.zeros(LAYOUT.block_bytes, np.uint8)
    data = block(number) if data is None else data
    assert folder.read(KEYS[number], out) == checksum_blocks([data])[0]
    assert np.array_equal(out, data)


def test_packed_and_plain_files_are_found_and_read(tmp_path: Path) -> None:
    """By a worker that packs and by one that does not; the sizes are those of the files."""
    noise = np.random.default_rng(0).integers(0, 256, LAYOUT.block_bytes, np.uint8)
    with closing(open_folder(tmp_path, packs=False)) as folder:
        assert write(folder, 0) == 0
    with closing(open_folder(tmp_path)) as folder:
        assert folder.scan() == KEYS[:1]
        assert write(folder, 1) > 0.22 * LAYOUT.block_bytes
        assert write(folder, 2, noise) == 0
        files = sorted(tmp_path.rglob("*.kv"))
        assert folder.num_bytes == sum(path.stat().st_size for path in files)
        sizes = [path.stat().st_size for path in files]
        assert sizes[0] == sizes[2] == folder.file_bytes
    for packs in (True, False):
        with closing(open_folder(tmp_path, packs=packs)) as folder:
            assert folder.scan() == KEYS[:3]
            assert folder.num_bytes == sum(sizes)
            check(folder, 0)
            check(folder, 1)
            check(folder, 2, noise)
    with closing(open_folder(tmp_path)) as folder:
        folder.scan()
        folder.remove(KEYS[:3])
        assert folder.num_bytes == 0


def test_blocks_of_other_numbers_are_not_packed(tmp_path: Path) -> None:
    for dtype in ("float32", "float16", "int8"):
        layout = KVLayout.of(LAYOUT.groups, block_size=16, dtype=dtype)
        with closing(open_folder(tmp_path / dtype, layout=layout)) as folder:
            assert write(folder, 0, block(0, layout)) == 0


def flip(data: bytearray) -> None:
    data[HEADER_BYTES + STREAM_HEADER_BYTES + 100] ^= 0x10


def cut(data: bytearray) -> None:
    del data[-5:]


def cut_honestly(data: bytearray) -> None:
    """Its own header knows of it."""
    del data[-5:]
    size = len(data) - HEADER_BYTES - STREAM_HEADER_BYTES
    data[HEADER_BYTES + 16 : HEADER_BYTES + 24] = size.to_bytes(8, "little")


def append(data: bytearray) -> None:
    data += b"x"


def lengthen(data: bytearray) -> None:
    data += bytes(LAYOUT.block_bytes)


def rename_version(data: bytearray) -> None:
    data[8] = 1


@pytest.mark.parametrize("damage", [flip, cut, cut_honestly, append, lengthen, rename_version])
def test_a_damaged_packed_file_is_no_block(
    tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    with closing(open_folder(tmp_path)) as folder:
        write(folder, 3)
        [path] = tmp_path.rglob("*.kv")
        data = bytearray(path.read_bytes())
        damage(data)
        path.write_bytes(data)
        # What does not look complete is not even found after a restart.
        assert len(folder.scan()) == (damage in (flip, cut_honestly))
        path.write_bytes(data)
        with pytest.raises(CorruptBlockError):
            folder.read(KEYS[3], np.zeros(LAYOUT.block_bytes, np.uint8))
        assert not path.exists()


BLOCK_SIZE = 16
PROMPT = [(7 * place) % 300 + 3 for place in range(6 * BLOCK_SIZE + 5)]


def start(folder: Path, disk: Path | None, *, packs: bool = False) -> Engine:
    settings: dict[str, Any] = {}
    if disk is not None:
        settings = {
            "kv_offload_host_gib": 0.001,
            "kv_offload_disk_gib": 0.1,
            "kv_offload_disk_dir": disk,
            "kv_offload_always_load": True,
            "kv_offload_disk_packing": packs,
        }
    return make_engine(
        load_model(folder, dtype="bfloat16"), block_size=BLOCK_SIZE, num_blocks=40, **settings
    )


def ask(engine: Engine) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were found."""
    run = generate(engine, make_request("a", PROMPT, max_tokens=8, ignore_eos=True))
    if engine.cached.offload is not None:
        settle(engine)
    return run.tokens("a"), run.admitted("a")[0].num_cached_tokens


def test_answers_from_packed_files_are_the_same(tmp_path: Path) -> None:
    """After restarts with packing and without; and where a file was damaged."""
    model, disk = tmp_path / "model", tmp_path / "disk"
    write_random_checkpoint(model, CheckpointSpec(architecture="qwen2", num_layers=2))
    with closing(start(model, None)) as engine:
        want, _ = ask(engine)
    with closing(start(model, disk, packs=True)) as engine:
        assert engine.layout.dtype == "bfloat16"
        assert ask(engine) == (want, 0)
        block_bytes = engine.layout.block_bytes
    files = sorted(disk.rglob("*.kv"))
    assert len(files) == 6
    assert all(path.stat().st_size < 0.8 * block_bytes for path in files)
    for packs in (False, True):
        with closing(start(model, disk, packs=packs)) as engine:
            assert ask(engine) == (want, 6 * BLOCK_SIZE)
            stats = engine.stats().tiers[BlockTier.DISK]
            assert stats.num_bytes == sum(path.stat().st_size for path in files)
    data = bytearray(files[0].read_bytes())
    data[-40] ^= 4
    files[0].write_bytes(data)
    with closing(start(model, disk)) as engine:
        answer, num_cached = ask(engine)
        assert answer == want
        assert num_cached < 6 * BLOCK_SIZE
        assert engine.stats().tiers[BlockTier.DISK].counters["corrupt_blocks"] == 1
