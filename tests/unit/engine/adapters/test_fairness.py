"""Who is admitted when more adapters wait than may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.adapters.folders import AdapterFolders
from shared.engine.adapters.slots import AdapterSlots
from shared.engine.adapters.store import AdapterStore
from shared.engine.schedule.adapter_lanes import AdapterLanes
from shared.engine.schedule.gates.adapter import AdapterGate
from shared.engine.schedule.waiting_queue import by_priority
from shared.engine.sequence.sequence import Sequence
from shared.errors import AdapterNotLoadedError
from shared.kv.identity import KVIdentity
from shared.request.adapter_ref import AdapterRef
from tests.fakes.engine.adapted_model import (
    AdaptedFakeModel,
    FakeAdapter,
    digest_of,
    make_store,
    write_fake,
)
from tests.fakes.engine.engines import drain, generate, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.schedule.waiting_queue import Rank

NUM_SLOTS, PATIENCE, NUM_SEATS = 2, 3, 4


class InMemory(AdapterStore):
    """All adapters are in memory at once."""

    missing: bytes = b""

    def content(self, digest: bytes) -> FakeAdapter | None:
        return None if digest == self.missing else FakeAdapter(1)

    def plan(self, used: object, wanted: object) -> None:
        pass


class Site:
    """A gate and its queue; a step admits as many as there are seats."""

    def __init__(self, rank: Callable[[Sequence], Rank] | None = None) -> None:
        self.lanes = AdapterLanes(rank)
        self.store = InMemory(AdapterFolders(), max_host=NUM_SLOTS)
        slots = AdapterSlots(AdaptedFakeModel(), NUM_SLOTS, self.store.least_used)
        self.gate = AdapterGate(self.store, slots, num_slots=NUM_SLOTS, patience=PATIENCE)
        self.running: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self.num_added = 0

    def add(self, value: int, priority: int = 0) -> None:
        number = self.num_added
        self.num_added += 1
        adapter = digest_of(value) if value else b""
        request = make_request(str(number), [1], priority=priority)
        identity = KVIdentity(bytes(32), adapter=adapter)
        self.lanes.add(Sequence(request, arrival=number, identity=identity))

    def step(self) -> None:
        self.gate.open(self.running)
        while len(self.running) < NUM_SEATS:
            seq = self.gate.choose(self.lanes.heads())
            if seq is None:
                return
            self.lanes.remove(seq)
            self.gate.admitted(seq)
            self.running.append(seq)
            self.admitted.append(seq)
            assert len({s.identity.adapter for s in self.running} - {b""}) <= NUM_SLOTS


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("aaas"), st.integers(0, 3)), max_size=80)
)
def test_none_waits_for_ever_and_none_is_overtaken_by_its_like(
    events: list[tuple[int, str, int]],
) -> None:
    """Against a model: order within an adapter, and a bound on those that pass the first."""
    site = Site()
    for value, kind, which in events:
        if kind == "a":
            site.add(value)
        if site.running:
            site.running.pop(which % len(site.running))
        site.step()
    while len(site.lanes):
        before = len(site.admitted)
        site.step()
        assert site.running, "nothing runs, and some wait"
        if len(site.admitted) == before:
            site.running.pop(0)
    order = [seq.arrival for seq in site.admitted]
    for adapter in {seq.identity.adapter for seq in site.admitted}:
        own = [seq.arrival for seq in site.admitted if seq.identity.adapter == adapter]
        assert own == sorted(own)
    assert sorted(order) == list(range(site.num_added))


def test_a_stream_of_one_adapter_does_not_keep_another_waiting() -> None:
    """With a request for each of two adapters after every end, the third gets its turn."""
    site = Site()
    for value in (1, 2, 1, 2, 3):
        site.add(value)
    last = 4
    for number in range(40):
        site.step()
        if any(seq.arrival == last for seq in site.admitted):
            break
        site.add(1 + number % 2)
        site.running.pop(0)
    else:
        pytest.fail("it starves")
    passed = [s for s in site.admitted[:-1] if s.arrival > last]
    # Behind its patience, the adapter that is to leave takes none; the other one goes on.
    assert PATIENCE <= len(passed) <= PATIENCE + 2 * NUM_SEATS


def test_the_next_slot_is_kept_for_the_one_whose_adapter_is_still_read() -> None:
    """Younger ones, whose adapters are there, would take each slot that becomes free."""
    site = Site()
    site.store.missing = digest_of(3)
    for value in (1, 2, 3):
        site.add(value)
    for number in range(30):
        site.step()
        site.add(4 + number % 3)
        if site.running:
            site.running.pop(0)
    num_before = len(site.admitted)
    site.store.missing = b""
    site.running.clear()
    site.step()
    assert site.admitted[num_before].arrival == 2
    assert num_before <= 2 + PATIENCE + NUM_SEATS


def test_those_without_an_adapter_are_not_held_up() -> None:
    site = Site()
    for value in (1, 2, 3, 0, 0):
        site.add(value)
    site.step()
    assert [seq.arrival for seq in site.admitted] == [0, 1, 3, 4]


def test_the_more_urgent_goes_first_whatever_its_adapter() -> None:
    site = Site(by_priority)
    for value, priority in ((1, 5), (2, 4), (3, 3), (0, 9), (3, 1)):
        site.add(value, priority)
    site.step()
    assert [seq.arrival for seq in site.admitted] == [4, 2, 1, 3]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    store = make_store(tmp_path, max_host=2)
    loaded = FakeLoadedModel(model=AdaptedFakeModel())
    return make_engine(loaded, adapters=store, enable_lora=True, max_loras=1, max_cpu_loras=2)


def test_a_request_waits_without_blocks_and_fails_alone(engine: Engine, tmp_path: Path) -> None:
    store = engine.adapters.store
    assert store is not None
    good, bad = (write_fake(tmp_path / str(value), value) for value in (1, 2))
    for ref in (good, bad):
        store.load(ref.name, ref.path)
    store.forget_contents()
    (tmp_path / "2" / "value").unlink()
    for name, ref in (("good", good), ("bad", bad), ("base", None)):
        engine.add(make_request(name, [1, 2, 3], adapter=ref))
    engine.step()
    run = drain(engine)
    failure = run.failure("bad")
    assert isinstance(failure, AdapterNotLoadedError)
    assert "has no adapter" in str(failure)
    assert len(run.tokens("good")) == 8
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    # It is found again when it is back.
    write_fake(tmp_path / "2", 2)
    run = generate(engine, make_request("again", [1, 2, 3], adapter=bad))
    assert len(run.tokens("again")) == 8
    store.close()


def test_an_adapter_that_is_not_known_is_refused(engine: Engine, tmp_path: Path) -> None:
    ref = AdapterRef("x", digest_of(3), str(tmp_path))
    with pytest.raises(AdapterNotLoadedError, match="'x'"):
        engine.add(make_request("a", [1], adapter=ref))
    assert not engine.has_work()


def test_blocks_are_told_with_their_adapter(engine: Engine, tmp_path: Path) -> None:
    store = engine.adapters.store
    assert store is not None
    ref = write_fake(tmp_path / "1", 1)
    store.load("1", ref.path)
    contents = engine.record_contents()
    generate(
        engine, make_request("a", range(9), adapter=ref), make_request("b", range(9), max_tokens=1)
    )
    changes = engine.take_cache_changes()
    found = [contents.take(key) for change in changes for key in change.stored]
    own = {(each.adapter, each.token_ids) for each in found if each is not None}
    first = tuple(range(4))
    assert {(ref.digest, first), (b"", first)} <= own
    store.close()
