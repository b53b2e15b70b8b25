"""Prompts from a peer are received in host memory while the pool is full."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from shared.engine.offload import build
from shared.engine.offload.landings import LandingRefusal
from shared.errors import UnavailableError
from shared.kv.tier import BlockTier
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import BLOCK_SIZE, expected_tokens, make_request
from tests.fakes.engine.landing import fill
from tests.fakes.engine.model import FakeLoadedModel
from tests.fakes.engine.offload import SteppedThreads, make_tiered_engine, offload_of, settle
from tests.unit.engine.offload.asking import NUM_TOKENS, PROMPTS, ask, counters
from tests.unit.engine.offload.crowd import NUM_BLOCKS, Crowd, hashes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine


def test_prompts_arrive_while_the_pool_is_full(crowd: Callable[..., Crowd]) -> None:
    loaded = FakeLoadedModel()
    c = crowd(loaded=loaded)
    prompts = {f"t{n}": PROMPTS[n] for n in range(3)}
    for name, prompt in prompts.items():
        c.add(name, prompt)
    c.drain()
    del loaded.model.num_tokens_per_step[:]
    for name in ("t1", "t2", "t0"):
        c.arrive(name, prompts[name])
        c.drain()
    # They are ready, and wait for blocks.
    assert not loaded.model.num_tokens_per_step
    assert [c.run.admitted(name) for name in prompts] == [[], [], []]
    stats = c.engine.stats()
    assert (stats.num_waiting, stats.num_receiving) == (3, 0)
    assert stats.landings == {"received": 3, "failed": 0, "cancelled": 0}
    c.make_room()
    for name, prompt in prompts.items():
        c.check(name, prompt)
        (admitted,) = c.run.admitted(name)
        assert admitted.num_cached_tokens == NUM_TOKENS
    # First come, first served, whatever arrived first: one at a time has room.
    assert [name for name in c.run.events if name in prompts] == sorted(prompts)
    assert [c.run.admitted(n)[0].at_s for n in prompts] == sorted(
        c.run.admitted(n)[0].at_s for n in prompts
    )
    # Of each prompt only what is behind its last full block was computed here.
    assert max(loaded.model.num_tokens_per_step) <= BLOCK_SIZE
    c.check_free()


def test_it_lands_only_when_the_pool_is_full(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    c.engine.release("held")
    c.add("t", PROMPTS[0])
    c.drain()
    assert not c.landings("t")
    (admitted,) = c.run.admitted("t")
    fill(c.sender, c.engine, admitted, PROMPTS[0])
    c.engine.complete_transfer("t", expected_tokens(PROMPTS[0], 1)[0])
    c.drain()
    c.check("t", PROMPTS[0])


def test_a_landing_that_fails_is_computed_here(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    for name, prompt in (("t0", PROMPTS[0]), ("t1", PROMPTS[1])):
        c.add(name, prompt)
    c.drain()
    # With garbage in its slots, and before or after its first token.
    c.landing("t0").memory.blocks[:] = 0xA5
    c.engine.fail_transfer("t0")
    c.engine.fail_transfer("t1", expected_tokens(PROMPTS[1], 1)[0])
    c.drain()
    assert offload_of(c.engine).landings.num_slots == 0
    c.make_room()
    c.check("t0", PROMPTS[0], first=0)
    c.check("t1", PROMPTS[1])
    assert c.engine.stats().landings["failed"] == 2
    c.check_free()


def test_damage_in_a_landed_slot_is_found_when_it_is_loaded(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    c.add("t", PROMPTS[0])
    c.drain()
    c.arrive("t", PROMPTS[0])
    c.drain()
    landing = c.landing("t")
    landing.memory.blocks[landing.tables[0][2], 3] ^= 1
    c.make_room()
    c.check("t", PROMPTS[0])
    assert counters(c.engine, BlockTier.HOST)["corrupt_blocks"] == 1
    c.check_free()


def _stepped(folder: Path) -> tuple[Engine, SteppedThreads]:
    """An engine whose host tier is full, over a disk; its copies are made one by one."""
    threads: list[SteppedThreads] = []

    def make_threads(*args: Any) -> SteppedThreads:
        threads.append(SteppedThreads(*args))
        return threads[0]

    with patch.object(build, "TierThreads", make_threads):
        engine = make_tiered_engine(
            num_blocks=NUM_BLOCKS, host_blocks=12, disk=folder, disk_blocks=100
        )
    for n, prompt in enumerate(PROMPTS[1:4]):
        ask(engine, prompt, f"before{n}")
    return engine, threads[0]


@pytest.mark.parametrize("state", ["clearing", "untold", "open", "sealing", "pinned"])
def test_a_cancellation_gives_everything_back(state: str, sender: Engine, tmp_path: Path) -> None:
    """Also while a copy uses the slots, but not before it has ended."""
    engine, threads = _stepped(tmp_path)
    c = Crowd(engine, sender)
    settle(engine)
    c.add("t", PROMPTS[0])
    events = engine.step()
    # The tier is full: what leaves it goes to disk before a peer may write.
    assert not events
    slots = offload_of(engine).landings
    assert slots.num_slots == 6
    if state != "clearing":
        assert not engine.has_work()
        assert threads.run_one()
        engine.wake()
        assert engine.has_work()
    if state in ("open", "sealing", "pinned"):
        c.drain()
        assert c.landing("t").num_cached_tokens == 0
    if state in ("sealing", "pinned"):
        c.arrive("t", PROMPTS[0])
    if state == "pinned":
        c.drain()
        assert engine.stats().num_waiting == 1
    engine.abort("t")
    (end,) = engine.step()
    assert end.finish_reason is FinishReason.ABORT  # type: ignore[union-attr]
    engine.check_integrity()
    in_use = {"clearing": 6, "sealing": 5}.get(state, 0)
    assert slots.num_slots == in_use
    if in_use:
        engine.release("held")
        with pytest.raises(UnavailableError, match="waits for blocks of the pool"):
            engine.reset_prefix_cache()
    settle(engine)
    # What had arrived stays.
    arrived = engine.cached.count(hashes_of(engine, PROMPTS[0]))
    assert arrived == (5 if state in ("sealing", "pinned") else 0)
    assert engine.stats().landings["cancelled"] == (state in ("clearing", "untold", "open"))
    c.make_room()
    c.check_free()
    ask(engine, PROMPTS[1], "after")
    engine.close()


def test_an_answer_that_ends_with_its_first_token_needs_no_block(
    crowd: Callable[..., Crowd],
) -> None:
    c = crowd()
    c.add("t", PROMPTS[0], max_tokens=1)
    c.drain()
    c.arrive("t", PROMPTS[0])
    c.drain()
    assert c.run.finish_reason("t") is FinishReason.LENGTH
    settle(c.engine)
    assert c.engine.cached.count(hashes_of(c.engine, PROMPTS[0])) == 5
    c.make_room()
    c.check_free()


def test_prompts_with_a_common_beginning_receive_it_once(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    first, second = PROMPTS[0], [*PROMPTS[0][:16], *range(70, 77)]
    c.add("t0", first)
    c.add("t1", second)
    c.drain()
    assert not c.landings("t1")
    c.arrive("t0", first)
    c.drain()
    assert c.landing("t1").num_cached_tokens == 16
    c.arrive("t1", second)
    c.drain()
    assert c.engine.stats().refused_landings == {LandingRefusal.ON_THE_WAY: 1}
    c.make_room()
    c.check("t0", first)
    c.check("t1", second)
    c.check_free()


def test_a_long_queue_lands_behind_prompts_that_cannot(crowd: Callable[..., Crowd]) -> None:
    c = crowd(host_blocks=200)
    prompts = [[n] * 3 for n in range(20)] + [[n] * 8 for n in range(20)]
    filler = make_request("filler", [91] * 3, max_tokens=1)
    c.engine.add(replace(filler, hold_blocks=True))
    c.drain()
    for n, prompt in enumerate(prompts):
        c.add(f"t{n}", prompt)
    c.drain()
    assert [n for n in range(40) if c.landings(f"t{n}")] == list(range(20, 40))
    assert c.engine.stats().refused_landings == {LandingRefusal.NOTHING_MISSING: 20}
    for n in range(40):
        c.engine.abort(f"t{n}")
    c.engine.release("filler")
    c.make_room()
    c.check_free()


def test_a_part_of_a_prompt_arrives(crowd: Callable[..., Crowd]) -> None:
    loaded = FakeLoadedModel()
    c = crowd(loaded=loaded)
    c.add("t", PROMPTS[0])
    c.drain()
    fill(c.sender, c.engine, c.landing("t"), PROMPTS[0])
    c.engine.complete_transfer("t", num_tokens=2 * BLOCK_SIZE)
    c.drain()
    del loaded.model.num_tokens_per_step[:]
    c.make_room()
    c.check("t", PROMPTS[0], first=0)
    assert loaded.model.num_tokens_per_step[0] == len(PROMPTS[0]) - 2 * BLOCK_SIZE
    c.check_free()


def test_what_has_landed_is_kept_and_loaded_whatever_that_costs(
    crowd: Callable[..., Crowd],
) -> None:
    c = crowd(kv_offload_always_load=False)
    offload = offload_of(c.engine)
    # Loading seems to take a second, and computing nothing.
    now_s = time.monotonic()
    offload._rule.note_loaded(BlockTier.HOST, 1, 1.0, now_s)
    offload._rule.note_computed(1000, 1e-6, now_s)
    c.add("t", PROMPTS[0])
    c.drain()
    c.arrive("t", PROMPTS[0])
    c.drain()
    settle(c.engine)
    # Others want all of the tier.
    assert offload._host.prepare_store([bytes([n]) * 32 for n in range(40)]) is None
    c.make_room()
    c.check("t", PROMPTS[0])
    assert c.run.admitted("t")[0].num_cached_tokens == NUM_TOKENS
    c.check_free()


def test_blocks_behind_a_gap_are_received_again(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    host = offload_of(c.engine)._host
    hashes = hashes_of(c.engine, PROMPTS[0])
    plan = host.prepare_store(hashes[2:4])
    assert plan is not None
    host.complete_store(plan.keys, success=True)
    c.add("t", PROMPTS[0])
    c.drain()
    c.arrive("t", PROMPTS[0])
    c.drain()
    c.make_room()
    c.check("t", PROMPTS[0])
    c.check_free()
