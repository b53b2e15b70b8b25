"""A damaged file of any group is a miss: its tokens are computed again, and never read."""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from shared.kv.tier import BlockTier
from shared.model.loader import load_model
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.group_kinds import CASES, SPECS
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.engine.offload import settle

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.kv.group_rules import GroupKind
    from shared.model.loaded import LoadedModel

BLOCK_SIZE = 16
PROMPT = [(7 * place) % 300 + 3 for place in range(6 * BLOCK_SIZE + 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("groups"), SPECS)


def restart(model: LoadedModel, disk: Path) -> Engine:
    """An engine whose pool and host tier are empty."""
    return make_engine(
        model,
        block_size=BLOCK_SIZE,
        num_blocks=40,
        kv_offload_host_gib=0.001,
        kv_offload_disk_gib=0.1,
        kv_offload_disk_dir=disk,
        kv_offload_always_load=True,
    )


def ask(engine: Engine) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were found."""
    run = generate(engine, make_request("a", PROMPT, max_tokens=8, ignore_eos=True))
    settle(engine)
    return run.tokens("a"), run.admitted("a")[0].num_cached_tokens


def files_of(disk: Path, group: int) -> list[Path]:
    """The files with blocks of one group, by what their headers say."""
    files = sorted(disk.rglob("*.kv"))
    return [f for f in files if struct.unpack_from("<I", f.read_bytes(), 12)[0] == group]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_flipped_bit_is_never_read(
    name: str, kind: GroupKind, folder: Path, tmp_path: Path
) -> None:
    model = load_model(folder / name)
    with closing(restart(model, tmp_path)) as engine:
        group = [each.kind for each in engine.layout.groups].index(kind)
        want, _ = ask(engine)
    with closing(restart(model, tmp_path)) as engine:
        assert ask(engine) == (want, 6 * BLOCK_SIZE)
    files = files_of(tmp_path, group)
    for path in files:
        data = bytearray(path.read_bytes())
        data[-len(data) // 2] ^= 0x10
        path.write_bytes(data)
    with closing(restart(model, tmp_path)) as engine:
        assert ask(engine) == (want, 0)
        assert engine.stats().tiers[BlockTier.DISK].counters["corrupt_blocks"] > 0
