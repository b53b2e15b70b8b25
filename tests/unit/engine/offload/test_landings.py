"""Prompts from a peer are received in host memory while the pool is full."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from shared.engine.offload import build
from shared.engine.offload.landings import LandingRefusal
from shared.engine.prompt_hidden import HiddenWish
from shared.engine.sequence.events import Landing
from shared.engine.sequence.request import KVSource
from shared.engine.step.hidden import HiddenNeeds
from shared.errors import UnavailableError
from shared.kv.tier import BlockTier
from shared.request.answer import FinishReason
from tests.fakes.engines import (
    BLOCK_SIZE,
    Run,
    drain,
    expected_tokens,
    make_engine,
    make_request,
)
from tests.fakes.landing import fill
from tests.fakes.model import FakeLoadedModel, FakeModel, make_spec
from tests.fakes.offload import SteppedThreads, make_tiered_engine, offload_of, settle
from tests.unit.engine.offload.asking import NUM_TOKENS, PROMPTS, ask, counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from shared.engine.engine import Engine

NUM_BLOCKS = 8


@pytest.fixture(scope="module")
def sender() -> Iterator[Engine]:
    engine = make_engine()
    yield engine
    engine.close()


class Crowd:
    """An engine whose pool is full: of its blocks, only one is free."""

    def __init__(self, engine: Engine, sender: Engine) -> None:
        self.engine = engine
        self.sender = sender
        self.run = Run()
        held = [90] * (BLOCK_SIZE * (NUM_BLOCKS - 1))
        engine.add(make_request("held", held, hold_blocks=True))
        self.drain()

    def drain(self) -> None:
        """Step until only a peer, or the end of the held request, can change anything."""
        drain(self.engine, self.run)

    def add(self, name: str, prompt: Sequence[int], **fields: Any) -> None:
        """Queue a prompt that a peer is to compute."""
        request = make_request(name, prompt, **fields)
        self.engine.add(replace(request, kv_source=KVSource.TRANSFER))

    def landing(self, name: str) -> Landing:
        """The one event that says where the prompt may be written."""
        (found,) = self.landings(name)
        return found

    def landings(self, name: str) -> list[Landing]:
        return [event for event in self.run.events[name] if isinstance(event, Landing)]

    def arrive(self, name: str, prompt: Sequence[int]) -> None:
        """Let a peer fill its slots, and say so."""
        fill(self.sender, self.engine, self.landing(name), prompt)
        self.engine.complete_transfer(name, expected_tokens(prompt, 1)[0])

    def make_room(self) -> None:
        """End the request that holds the pool, and all others after it."""
        self.engine.release("held")
        self.drain()

    def check(self, name: str, prompt: Sequence[int], first: int = 1) -> None:
        """The peer's first tokens and those from here are the answer."""
        expected = expected_tokens(prompt, 8)
        assert expected[:first] + self.run.tokens(name) == expected

    def check_free(self) -> None:
        """Nothing is held anywhere: no block, no slot, no pin."""
        settle(self.engine)
        assert offload_of(self.engine).landings.num_slots == 0
        assert self.engine.stats().num_free_blocks == NUM_BLOCKS
        # It refuses while a block of a tier is being stored, or pinned.
        self.engine.reset_prefix_cache()
        self.engine.check_integrity()


@pytest.fixture
def crowd(make: Callable[..., Engine], sender: Engine) -> Callable[..., Crowd]:
    def begin(**settings: Any) -> Crowd:
        usual = {"num_blocks": NUM_BLOCKS, "host_blocks": 40}
        return Crowd(make(**(usual | settings)), sender)

    return begin


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


@pytest.mark.parametrize("state", ["clearing", "open", "sealing", "pinned"])
def test_a_cancellation_gives_everything_back(state: str, sender: Engine, tmp_path: Path) -> None:
    """Also while a copy uses the slots, but not before it has ended."""
    threads: list[SteppedThreads] = []

    def make_threads(*args: Any) -> SteppedThreads:
        threads.append(SteppedThreads(*args))
        return threads[0]

    with patch.object(build, "TierThreads", make_threads):
        engine = make_tiered_engine(
            num_blocks=NUM_BLOCKS, host_blocks=12, disk=tmp_path, disk_blocks=100
        )
    for n, prompt in enumerate(PROMPTS[1:4]):
        ask(engine, prompt, f"before{n}")
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
        assert threads[0].run_one()
        engine.wake()
        assert engine.has_work()
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
    arrived = engine.cached.count(_hashes(engine, PROMPTS[0]))
    assert arrived == (5 if state in ("sealing", "pinned") else 0)
    assert engine.stats().landings["cancelled"] == (state in ("clearing", "open"))
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
    assert c.engine.cached.count(_hashes(c.engine, PROMPTS[0])) == 5
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


def _settings(reason: LandingRefusal, folder: Path) -> dict[str, Any]:
    match reason:
        case LandingRefusal.OFF:
            return {"kv_offload_landing": False}
        case LandingRefusal.LAYOUT:
            spec, model = make_spec(windows=(None, 6)), FakeModel((None, 6))
            return {"loaded": FakeLoadedModel(model=model, spec=spec), "num_blocks": 16}
        case LandingRefusal.NO_SLOTS:
            return {"host_blocks": 11}
        case LandingRefusal.ON_DISK:
            return {"host_blocks": 12, "disk": folder, "disk_blocks": 100}
        case _:
            return {}


def _fields(reason: LandingRefusal, engine: Engine) -> dict[str, Any]:
    match reason:
        case LandingRefusal.WHOLE_PROMPT:
            return {"prompt_logprobs": 1}
        case LandingRefusal.HIDDEN_STATES:
            form = engine.hidden.format(HiddenNeeds(final=True))
            assert form is not None
            return {"hidden": HiddenWish(format=form, first_position=None)}
        case _:
            return {}


@pytest.mark.parametrize(
    "reason",
    [
        reason
        for reason in LandingRefusal
        # The last has a test of its own, and ranks are in `ranks/test_group`.
        if reason not in (LandingRefusal.RANKS, LandingRefusal.ON_THE_WAY)
    ],
)
def test_what_it_does_not_cover_waits_and_is_counted_once(
    reason: LandingRefusal, make: Callable[..., Engine], sender: Engine, tmp_path: Path
) -> None:
    if reason is LandingRefusal.NO_HOST_TIER:
        engine = make_engine(num_blocks=NUM_BLOCKS)
    else:
        usual = {"num_blocks": NUM_BLOCKS, "host_blocks": 40}
        engine = make(**(usual | _settings(reason, tmp_path)))
    if reason is LandingRefusal.CONNECTOR:
        engine.refuse_landings(reason)
    prompt = PROMPTS[0]
    before = {LandingRefusal.ON_DISK: 4, LandingRefusal.NOTHING_MISSING: 1}
    for n in range(before.get(reason, 0)):
        ask(engine, PROMPTS[n])
    c = Crowd(engine, sender)
    c.add("t", prompt, **_fields(reason, engine))
    # Some steps beside it.
    c.engine.add(make_request("beside", PROMPTS[1], priority=1))
    c.drain()
    assert not c.run.events["t"]
    assert engine.stats().refused_landings == {reason: 1}
    c.engine.release("held")
    while not c.run.events["t"]:
        for event in engine.step():
            c.run.events[event.request_id].append(event)
    assert c.run.admitted("t")
    engine.abort("t")
    c.drain()
    assert c.run.tokens("beside") == expected_tokens(PROMPTS[1], 8)


def test_blocks_behind_a_gap_are_received_again(crowd: Callable[..., Crowd]) -> None:
    c = crowd()
    host = offload_of(c.engine)._host
    hashes = _hashes(c.engine, PROMPTS[0])
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


def _hashes(engine: Engine, prompt: Sequence[int]) -> list[bytes]:
    identity = make_request("x", prompt).identity(engine.namespace)
    return identity.hash_blocks(prompt, BLOCK_SIZE)
