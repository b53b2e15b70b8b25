"""The disk tier: restarts, damaged files, disks that fail. Never a wrong byte."""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING

import pytest

from shared.engine.offload.disk import block_file, tier
from shared.errors import ConfigError
from shared.kv.tier import BlockTier
from tests.fakes.engine.engines import generate, make_request
from tests.fakes.engine.model import FakeLoadedModel
from tests.fakes.engine.offload import (
    FILE_BYTES,
    offload_of,
)
from tests.unit.engine.offload.asking import NUM_TOKENS, PROMPTS, ask, counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.engine import Engine


def test_the_disk_tier_is_bounded(make: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make(host_blocks=8, disk=tmp_path, disk_blocks=7)
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.close()
    files = list(tmp_path.glob("*/*/*.kv"))
    assert 0 < len(files) <= 7
    assert {path.stat().st_size for path in files} == {FILE_BYTES}


def test_nobody_else_can_enter_the_folder(make: Callable[..., Engine], tmp_path: Path) -> None:
    """Who can read KV blocks can read prompts."""
    make(host_blocks=12, disk=tmp_path, disk_blocks=7).close()
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    make(host_blocks=12, disk=tmp_path, disk_blocks=7).close()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_restart_finds_what_the_tiers_held(make: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.close()
    assert not list(tmp_path.rglob("*.tmp"))
    engine = make(host_blocks=20, disk=tmp_path, disk_blocks=100)
    held = {key for change in engine.take_cache_changes() for key in change.stored}
    assert held == set(engine.cached.snapshots()[BlockTier.DISK])
    for prompt in PROMPTS:
        assert ask(engine, prompt) == NUM_TOKENS
    assert counters(engine, BlockTier.DISK)["hits"] == 5 * len(PROMPTS)


def test_a_restart_finds_what_only_the_pool_held(
    make: Callable[..., Engine], tmp_path: Path
) -> None:
    """Of so small a pool one block is copied at a time: the others still wait at the end."""
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    generate(engine, make_request("a", PROMPTS[0], max_tokens=1))
    assert offload_of(engine).stores.num_waiting > 0
    engine.close()
    engine = make(host_blocks=20, disk=tmp_path, disk_blocks=100)
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS


def test_a_smaller_disk_tier_keeps_what_was_used_last(
    make: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.close()
    engine = make(host_blocks=20, disk=tmp_path, disk_blocks=13)
    assert len(list(tmp_path.glob("*/*/*.kv"))) == 13
    assert ask(engine, PROMPTS[-1]) == NUM_TOKENS


def test_other_namespaces_are_left_alone(make: Callable[..., Engine], tmp_path: Path) -> None:
    other = FakeLoadedModel()
    object.__setattr__(other, "fingerprint", "another model")
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100, loaded=other)
    ask(engine, PROMPTS[0])
    engine.close()
    num_files = len(list(tmp_path.glob("*/*/*.kv")))
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=1)
    assert ask(engine, PROMPTS[0]) == 0
    engine.close()
    assert len(list(tmp_path.glob("*/*/*.kv"))) == num_files + 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def exchange(path: Path) -> None:
    other = next(p for p in path.parent.parent.glob("*/*.kv") if p != path)
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("damage", [flip, truncate, cut_header, append, exchange])
def test_a_damaged_file_is_a_miss_and_is_deleted(
    make: Callable[..., Engine], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    # The third block that host memory evicted.
    key = offload_of(engine).snapshots()[BlockTier.DISK][2]
    (path,) = tmp_path.rglob(f"{key.hex()}.kv")
    damage(path)
    cached = [ask(engine, prompt) for prompt in PROMPTS]
    assert min(cached) < NUM_TOKENS
    disk = counters(engine, BlockTier.DISK)
    assert (disk["corrupt_blocks"], disk["failed_loads"]) == (1, 1)
    assert not path.exists() or path.stat().st_size == FILE_BYTES


def test_a_file_that_is_gone_is_a_miss(make: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    for path in tmp_path.rglob("*.kv"):
        path.unlink()
    assert ask(engine, PROMPTS[0]) == 0
    disk = counters(engine, BlockTier.DISK)
    assert (disk["corrupt_blocks"], disk["failed_loads"]) == (0, 1)


@pytest.fixture
def tiny_files() -> Iterator[Callable[[bool], None]]:
    """The kernel refuses to write files of a block's size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(on: bool) -> None:
        soft = FILE_BYTES - 10 if on else before[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failing_disk_costs_hits_until_it_works_again(
    make: Callable[..., Engine],
    tmp_path: Path,
    tiny_files: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    tiny_files(True)
    for prompt in PROMPTS[:5]:
        ask(engine, prompt)
    tiny_files(False)
    stats = engine.stats().tiers[BlockTier.DISK]
    assert not stats.is_available
    assert stats.counters["failed_stores"] > 0
    assert stats.num_blocks == 0
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"]
    num_failed = stats.counters["failed_stores"]
    for prompt in PROMPTS[5:]:
        ask(engine, prompt)
    stats = engine.stats().tiers[BlockTier.DISK]
    assert stats.counters["failed_stores"] == num_failed, "it was not left alone"
    assert capsys.readouterr().out.count("kv_offload_disk_failing") == 1
    monkeypatch.setattr(tier, "RETRY_S", 0.0)
    monkeypatch.setattr(tier.time, "monotonic", _later(100.0))
    for prompt in PROMPTS:
        ask(engine, prompt)
    assert engine.stats().tiers[BlockTier.DISK].is_available
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS


def _later(seconds: float) -> Callable[[], float]:
    clock = tier.time.monotonic
    return lambda: clock() + seconds


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_every_error_of_the_disk_is_survived(
    make: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    monkeypatch.setattr(block_file.os, "utime", fail)
    assert ask(engine, PROMPTS[0]) < NUM_TOKENS
    assert counters(engine, BlockTier.DISK)["failed_loads"] == 1
    assert not engine.stats().tiers[BlockTier.DISK].is_available


def test_two_workers_do_not_share_a_folder(make: Callable[..., Engine], tmp_path: Path) -> None:
    make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    with pytest.raises(ConfigError, match="in use by another worker"):
        make(host_blocks=12, disk=tmp_path, disk_blocks=100)
