"""Blocks that left the pool come back from host memory or disk, or are computed again."""

from __future__ import annotations

import errno
import resource
import threading
from typing import TYPE_CHECKING

import pytest

from shared.engine.events import FinishReason
from shared.engine.offload import block_file, disk_tier
from shared.errors import ConfigError, UnavailableError
from shared.kv.tier import BlockTier
from tests.fakes.engines import BLOCK_SIZE, drain, expected_tokens, generate, make_request
from tests.fakes.model import FakeLoadedModel
from tests.fakes.offload import (
    BLOCK_BYTES,
    FILE_BYTES,
    make_tiered_engine,
    offload_of,
    settle,
    tier_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.engine import Engine

#: Five full blocks and a token; with eight tokens of an answer six blocks become final.
PROMPTS = [[n] * 4 + list(range(10, 27)) for n in range(1, 9)]
NUM_TOKENS = 5 * BLOCK_SIZE


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def start(**settings: object) -> Engine:
        engines.append(make_tiered_engine(**({"num_blocks": 10} | settings)))  # type: ignore[arg-type]
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("kv-offload")]


def ask(engine: Engine, prompt: list[int], name: str = "a") -> int:
    """Answer, check the answer, wait for the tiers; returns the cached tokens."""
    run = generate(engine, make_request(name, prompt))
    settle(engine)
    engine.check_integrity()
    assert run.tokens(name) == expected_tokens(prompt, 8)
    return run.admitted(name)[0].num_cached_tokens


def counters(engine: Engine, tier: BlockTier) -> dict[str, float]:
    return engine.stats().tiers[tier].counters


def test_what_left_the_pool_comes_back_from_host_memory(make: Callable[..., Engine]) -> None:
    loaded = FakeLoadedModel()
    engine = make(host_blocks=100, loaded=loaded)
    for prompt in PROMPTS[:3]:
        assert ask(engine, prompt) == 0
    del loaded.model.num_tokens_per_step[:]
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS
    assert loaded.model.num_tokens_per_step[0] == 1
    assert counters(engine, BlockTier.HOST)["hits"] == 5
    assert engine.stats().counters["prefix_cache_hits"] == NUM_TOKENS


def test_what_left_host_memory_comes_back_from_disk(
    make: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS
    assert counters(engine, BlockTier.DISK)["hits"] == 5
    stats = engine.stats().tiers
    assert stats[BlockTier.HOST].num_blocks <= 12
    assert stats[BlockTier.DISK].num_bytes == len(list(tmp_path.glob("*/*/*.kv"))) * FILE_BYTES


def test_the_disk_tier_is_bounded(make: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make(host_blocks=8, disk=tmp_path, disk_blocks=7)
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.close()
    files = list(tmp_path.glob("*/*/*.kv"))
    assert 0 < len(files) <= 7
    assert {path.stat().st_size for path in files} == {FILE_BYTES}


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
    monkeypatch.setattr(disk_tier, "RETRY_S", 0.0)
    monkeypatch.setattr(disk_tier.time, "monotonic", _later(100.0))
    for prompt in PROMPTS:
        ask(engine, prompt)
    assert engine.stats().tiers[BlockTier.DISK].is_available
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS


def _later(seconds: float) -> Callable[[], float]:
    clock = disk_tier.time.monotonic
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


class Gate:
    """Holds the copying thread back before it writes to the pool."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        copies = offload_of(engine)._threads._copies
        to_device = copies.to_device

        def wait(slots: list[int], blocks: list[int]) -> object:
            self.reached.set()
            assert self.open.wait(30)
            return to_device(slots, blocks)

        monkeypatch.setattr(copies, "to_device", wait)


def test_others_run_while_one_loads(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(host_blocks=100, num_blocks=20)
    for prompt in PROMPTS:
        ask(engine, prompt)
    gate = Gate(engine, monkeypatch)
    other = [50, 51, 52]
    engine.add(make_request("loads", PROMPTS[0]))
    engine.add(make_request("runs", other))
    run = drain(engine, until=lambda run: len(run.tokens("runs")) == 8)
    assert run.tokens("runs") == expected_tokens(other, 8)
    assert engine.stats().num_loading == 1
    assert not run.events["loads"]
    gate.open.set()
    drain(engine, run)
    assert run.tokens("loads") == expected_tokens(PROMPTS[0], 8)
    assert [e.num_cached_tokens for e in run.admitted("loads")] == [NUM_TOKENS]


def test_blocks_of_an_aborted_load_are_not_reused_before_it_is_over(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(host_blocks=100)
    for prompt in PROMPTS[:3]:
        ask(engine, prompt)
    gate = Gate(engine, monkeypatch)
    engine.add(make_request("loads", PROMPTS[0]))
    engine.step()
    assert gate.reached.wait(30)
    engine.abort("loads")
    (end,) = engine.step()
    assert end.finish_reason is FinishReason.ABORT  # type: ignore[union-attr]
    engine.check_integrity()
    assert engine.stats().num_free_blocks == 5
    with pytest.raises(UnavailableError):
        engine.reset_prefix_cache()
    gate.open.set()
    settle(engine)
    engine.check_integrity()
    assert engine.stats().num_free_blocks == 10
    assert ask(engine, PROMPTS[0], "again") == NUM_TOKENS


def test_bytes_that_changed_in_host_memory_are_not_used(make: Callable[..., Engine]) -> None:
    engine = make(host_blocks=100)
    for prompt in PROMPTS[:3]:
        ask(engine, prompt)
    offload_of(engine)._threads._copies.host[:] ^= 1
    assert ask(engine, PROMPTS[0]) == 0
    host = counters(engine, BlockTier.HOST)
    assert (host["corrupt_blocks"], host["failed_loads"]) == (1, 1)


def test_two_that_want_the_same_blocks_of_the_disk_share_one_read(
    make: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = make(host_blocks=24, disk=tmp_path, disk_blocks=100, num_blocks=20)
    for prompt in PROMPTS:
        ask(engine, prompt)
    run = generate(engine, make_request("a", PROMPTS[0]), make_request("b", PROMPTS[0]))
    settle(engine)
    for name in "ab":
        assert run.tokens(name) == expected_tokens(PROMPTS[0], 8)
        assert run.admitted(name)[0].num_cached_tokens == NUM_TOKENS
    assert counters(engine, BlockTier.DISK)["loads"] == 5


def test_a_reset_forgets_all_tiers(make: Callable[..., Engine], tmp_path: Path) -> None:
    engine = make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    for prompt in PROMPTS:
        ask(engine, prompt)
    engine.reset_prefix_cache()
    assert not any(engine.cached.snapshots().values())
    assert ask(engine, PROMPTS[0]) == 0
    engine.close()
    assert {path.name for path in tmp_path.rglob("*.kv")} == {
        f"{key.hex()}.kv" for key in engine.cache_snapshot()
    }


def test_two_workers_do_not_share_a_folder(make: Callable[..., Engine], tmp_path: Path) -> None:
    make(host_blocks=12, disk=tmp_path, disk_blocks=100)
    with pytest.raises(ConfigError, match="in use by another worker"):
        make(host_blocks=12, disk=tmp_path, disk_blocks=100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_offload_host_gib": -1.0}, "kv_offload_host_gib must be at least 0"),
        ({"kv_offload_host_gib": float("nan")}, "kv_offload_host_gib"),
        ({"kv_offload_host_gib": 1e-9}, f"one KV block of {BLOCK_BYTES} bytes"),
        ({"kv_offload_host_gib": 1e6}, "GiB of host memory are available"),
        ({"kv_offload_disk_gib": 1.0}, "need each other"),
        ({"kv_offload_disk_gib": 1e-9, "kv_offload_disk_dir": "/tmp/x"}, "KV block of"),
        ({"kv_offload_disk_gib": 1.0, "kv_offload_disk_dir": "/dev/null/x"}, "cannot write"),
        ({"enable_prefix_caching": False}, "needs enable_prefix_caching"),
    ],
)
def test_bad_settings_say_what_is_wrong(
    make: Callable[..., Engine], tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    if settings.get("kv_offload_disk_dir") == "/tmp/x":
        settings = settings | {"kv_offload_disk_dir": tmp_path}
    with pytest.raises(ConfigError, match=message):
        make(**({"host_blocks": 12} | settings))


def test_the_disk_needs_host_memory() -> None:
    settings = tier_settings(host_blocks=1) | {
        "kv_offload_host_gib": 0.0,
        "kv_offload_disk_dir": "/tmp",
        "kv_offload_disk_gib": 1.0,
    }
    with pytest.raises(ConfigError, match="needs kv_offload_host_gib"):
        make_tiered_engine(host_blocks=1, **settings)
