"""Blocks that left the pool come back from host memory or disk, or are computed again."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError, UnavailableError
from shared.kv.identity import KVIdentity, block_key
from shared.kv.tier import BlockTier
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import (
    BLOCK_SIZE,
    cached_hashes,
    drain,
    expected_tokens,
    generate,
    make_request,
)
from tests.fakes.engine.model import FakeLoadedModel, FakeModel, make_spec
from tests.fakes.engine.offload import (
    BLOCK_BYTES,
    FILE_BYTES,
    Gate,
    make_tiered_engine,
    offload_of,
    settle,
    tier_settings,
)
from tests.unit.engine.offload.asking import NUM_TOKENS, PROMPTS, ask, counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shared.engine.engine import Engine


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


WINDOWS = (None, 6)


def windowed(make: Callable[..., Engine]) -> Engine:
    """An engine with a window in its second group: 6 tokens are parts of 2 or 3 blocks."""
    loaded = FakeLoadedModel(model=FakeModel(WINDOWS), spec=make_spec(windows=WINDOWS))
    engine = make(host_blocks=100, num_blocks=20, loaded=loaded)
    for prompt in PROMPTS[:4]:
        assert ask(engine, prompt) == 0
    return engine


def forget(engine: Engine, prompt: list[int], places: Iterable[int]) -> None:
    """Drop blocks of the second group from host memory."""
    hashes = KVIdentity(engine.namespace).hash_blocks(prompt, BLOCK_SIZE)
    for place in places:
        offload_of(engine)._host.forget(block_key(hashes[place], 1))


def test_a_load_brings_of_a_window_what_is_read_behind_it(make: Callable[..., Engine]) -> None:
    engine = windowed(make)
    forget(engine, PROMPTS[0], range(3))
    assert ask(engine, PROMPTS[0]) == NUM_TOKENS
    assert counters(engine, BlockTier.HOST)["hits"] == 5 + 2
    # A prefix that ends in front of a missing block of the window is shorter, or none.
    forget(engine, PROMPTS[1], [4])
    assert ask(engine, PROMPTS[1]) == NUM_TOKENS - BLOCK_SIZE
    forget(engine, PROMPTS[2], [1, 3])
    assert ask(engine, PROMPTS[2]) == BLOCK_SIZE


def test_a_load_without_the_whole_window_is_no_load(make: Callable[..., Engine]) -> None:
    engine = windowed(make)
    offload_of(engine)._threads._copies.host[:] ^= 1
    run = generate(engine, make_request("a", PROMPTS[0], hold_blocks=True))
    assert run.tokens("a") == expected_tokens(PROMPTS[0], 1)
    (admitted,) = run.admitted("a")
    assert admitted.num_cached_tokens == 0
    # It has the blocks to begin with, not those behind what was to be loaded.
    assert min(admitted.tables[1][:3]) >= 0
    assert counters(engine, BlockTier.HOST)["corrupt_blocks"] == 1
    engine.release("a")
    drain(engine)
    settle(engine)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


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
        f"{key.hex()}.kv" for key in cached_hashes(engine)
    }


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


def tier_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("kv-offload")]


def test_an_engine_that_cannot_start_leaves_nothing_behind(
    make: Callable[..., Engine], tmp_path: Path
) -> None:
    """Its guesses fail after its tiers were opened: no thread runs, and the folder is free."""
    tiers = {"host_blocks": 12, "disk": tmp_path, "disk_blocks": 20}
    unknown = (
        '{"method": "custom", "num_speculative_tokens": 2, '
        '"proposer_class": "tests.fakes.engine.proposers:Missing"}'
    )
    before = tier_threads()
    with pytest.raises(ConfigError, match="Missing"):
        make(**tiers, speculative_config=unknown)
    assert tier_threads() == before
    make(**tiers)


def test_an_engine_that_is_forgotten_ends_its_threads(tmp_path: Path) -> None:
    engine = make_tiered_engine(host_blocks=12, disk=tmp_path, disk_blocks=20)
    ask(engine, PROMPTS[0])
    own = [each for each in threading.enumerate() if each.name.startswith("kv-offload")]
    assert len(own) == 2
    del engine
    gc.collect()
    for thread in own:
        thread.join(10)
    assert tier_threads() == []
    gc.collect()
    make_tiered_engine(host_blocks=12, disk=tmp_path, disk_blocks=20).close()


def test_the_disk_needs_host_memory() -> None:
    settings = tier_settings(host_blocks=1) | {
        "kv_offload_host_gib": 0.0,
        "kv_offload_disk_dir": "/tmp",
        "kv_offload_disk_gib": 1.0,
    }
    with pytest.raises(ConfigError, match="needs kv_offload_host_gib"):
        make_tiered_engine(host_blocks=1, **settings)
