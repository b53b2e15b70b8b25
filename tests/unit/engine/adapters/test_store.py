"""Known adapters: names, memory, and what happens to those that are in use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shared.engine.adapters.slots import AdapterSlots
from shared.engine.adapters.store import AdapterStore
from shared.errors import AdapterNotLoadedError, InvalidRequestError, UnavailableError
from shared.request.adapter_ref import AdapterRef
from tests.fakes.engine.adapted_model import (
    AdaptedFakeModel,
    FakeAdapter,
    digest_of,
    make_store,
    read_fake,
    write_fake,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AdapterStore]:
    made = make_store(tmp_path, max_host=2)
    yield made
    made.check_integrity()
    made.close()


@pytest.fixture
def refs(tmp_path: Path) -> list[AdapterRef]:
    return [write_fake(tmp_path / f"a{value}", value) for value in range(5)]


def values(store: AdapterStore, refs: list[AdapterRef]) -> set[int]:
    """The adapters in memory."""
    return {value for value, ref in enumerate(refs) if ref.digest in store.in_memory()}


def settle(store: AdapterStore) -> None:
    while store.is_loading:
        store.wait(10)


def use(store: AdapterStore, ref: AdapterRef) -> None:
    store.enter(ref)
    store.leave(ref.digest)


def test_the_least_used_ones_leave_memory(store: AdapterStore, refs: list[AdapterRef]) -> None:
    for ref in refs[:3]:
        store.load(ref.name, ref.path)
    assert values(store, refs) == {1, 2}
    assert store.content(refs[1].digest) == FakeAdapter(1)
    for number in (1, 1, 2):
        use(store, refs[number])
    store.load(refs[3].name, refs[3].path)
    assert values(store, refs) == {1, 3}
    # What is wanted is read again, first things first, and what is used stays.
    store.plan([refs[3].digest], [refs[2].digest, refs[0].digest])
    settle(store)
    assert values(store, refs) == {2, 3}
    store.load(refs[4].name, refs[4].path)
    assert values(store, refs) == {2, 3}
    assert [known.ref.name for known in store.names()] == ["a0", "a1", "a2", "a3", "a4"]


def test_an_order_to_load_is_a_use(store: AdapterStore, refs: list[AdapterRef]) -> None:
    for number in (0, 1, 0, 2):
        store.load(refs[number].name, refs[number].path)
    assert values(store, refs) == {0, 2}


def test_what_was_popular_leaves_for_what_is(store: AdapterStore, refs: list[AdapterRef]) -> None:
    old, rare, new = refs[:3]
    store.load(old.name, old.path)
    for _ in range(50):
        use(store, old)
    store.load(rare.name, rare.path)
    store.load(new.name, new.path)
    assert values(store, refs) == {0, 2}
    for _ in range(20):
        use(store, new)
    store.load(rare.name, rare.path)
    assert values(store, refs) == {1, 2}


def test_what_is_loaded_anew_has_no_uses_of_before(
    store: AdapterStore, refs: list[AdapterRef]
) -> None:
    gone, other, third = refs[:3]
    store.load(gone.name, gone.path)
    for _ in range(9):
        use(store, gone)
    store.unload(gone.name)
    store.load(other.name, other.path)
    use(store, other)
    store.load(gone.name, gone.path)
    store.load(third.name, third.path)
    assert values(store, refs) == {1, 2}


def test_the_least_used_one_loses_its_slot(store: AdapterStore, refs: list[AdapterRef]) -> None:
    slots = AdapterSlots(AdaptedFakeModel(), 2, store.least_used)
    for number, num_uses in enumerate((3, 1, 1)):
        store.load(refs[number].name, refs[number].path)
        for _ in range(num_uses):
            use(store, refs[number])
        slots.use(refs[number].digest, store.content(refs[number].digest), ())
    assert slots.digests == {refs[0].digest, refs[2].digest}
    # One that runs keeps its slot, however rare it is.
    use(store, refs[0])
    slots.use(refs[1].digest, FakeAdapter(1), {refs[2].digest})
    assert slots.digests == {refs[1].digest, refs[2].digest}


def test_a_user_keeps_what_has_lost_its_name(store: AdapterStore, refs: list[AdapterRef]) -> None:
    old, new = refs[:2]
    store.load("sql", old.path)
    own = AdapterRef("sql", old.digest, old.path)
    store.enter(own)
    with pytest.raises(InvalidRequestError, match="loaded already"):
        store.load("sql", new.path)
    _, replaced = store.load("sql", new.path, replace=True)
    assert replaced == own
    for ref in refs[2:]:
        store.load(ref.name, ref.path)
    # It could not be read again: its folder may have another content.
    assert store.content(old.digest) is not None
    store.check_integrity()
    store.leave(old.digest)
    assert store.content(old.digest) is None
    with pytest.raises(AdapterNotLoadedError, match="not loaded"):
        store.enter(own)


def test_a_late_request_brings_no_name_back(store: AdapterStore, refs: list[AdapterRef]) -> None:
    ref = refs[0]
    store.ensure(ref)
    assert store.named("a0") is not None
    store.unload("a0")
    store.ensure(ref)
    store.enter(ref)
    assert store.named("a0") is None
    store.leave(ref.digest)
    store.load("a0", ref.path)
    assert store.named("a0") is not None


def test_a_read_that_failed_between_two_models_is_forgotten(
    store: AdapterStore, refs: list[AdapterRef]
) -> None:
    for ref in refs[:3]:
        store.load(ref.name, ref.path)
    store.attach(None)
    store.plan([], [refs[0].digest])
    settle(store)
    store.attach(read_fake)
    assert not store.take_failures()
    store.plan([], [refs[0].digest])
    settle(store)
    assert store.content(refs[0].digest) == FakeAdapter(0)


def test_what_changed_on_disk_is_not_taken(
    store: AdapterStore, refs: list[AdapterRef], tmp_path: Path
) -> None:
    for ref in refs[:3]:
        store.load(ref.name, ref.path)
    write_fake(tmp_path / "a0", 9)
    store.plan([], [refs[0].digest])
    settle(store)
    failures = store.take_failures()
    assert list(failures) == [refs[0].digest]
    assert "has content" in str(failures[refs[0].digest])
    with pytest.raises(AdapterNotLoadedError, match="has content"):
        store.ensure(AdapterRef("b", digest_of(7), str(tmp_path / "a0")))


def test_requests_that_come_together_read_once(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_host=2)
    ref = write_fake(tmp_path / "a", 1)
    read: list[Path] = []
    may_read = threading.Event()

    def slowly(folder: Path) -> FakeAdapter:
        read.append(folder)
        may_read.wait(10)
        return read_fake(folder)

    store.attach(slowly)
    threads = [threading.Thread(target=store.ensure, args=(ref,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_read.set()
    for thread in threads:
        thread.join()
    assert len(read) == 1
    store.close()


def test_without_a_model_nothing_is_read(store: AdapterStore, refs: list[AdapterRef]) -> None:
    store.load("a", refs[0].path)
    store.attach(None)
    store.forget_contents()
    with pytest.raises(UnavailableError, match="no model"):
        store.load("b", refs[1].path)
    assert store.named("a") is not None
    assert store.in_memory() == set()


def test_pinned_ones_stay(tmp_path: Path, refs: list[AdapterRef]) -> None:
    store = AdapterStore(make_store(tmp_path, max_host=1).folders, max_host=3, max_pinned=1)
    store.attach(read_fake)
    for ref in refs[:2]:
        store.load(ref.name, ref.path)
    store.pin("a0")
    with pytest.raises(InvalidRequestError, match="max_cpu_loras"):
        store.pin("a1")
    for ref in refs[2:]:
        store.load(ref.name, ref.path)
    assert values(store, refs) == {0, 3, 4}
    store.close()


def test_a_content_is_read_from_any_folder_of_its_names(
    store: AdapterStore, refs: list[AdapterRef], tmp_path: Path
) -> None:
    """One of them may be written anew, or go."""
    first = refs[0]
    copy = write_fake(tmp_path / "copy", 0)
    assert copy.digest == first.digest
    store.load(first.name, first.path)
    store.load(copy.name, copy.path)
    assert [known.ref for known in store.names()] == [first, copy]
    write_fake(tmp_path / "copy", 7)
    for ref in refs[1:3]:
        store.load(ref.name, ref.path)
        for _ in range(3):
            use(store, ref)
    assert values(store, refs) == {1, 2}
    store.plan([], [first.digest])
    settle(store)
    assert store.content(first.digest) == FakeAdapter(0)
    assert not store.take_failures()
    known, replaced = store.load(copy.name, copy.path, replace=True)
    assert (known.ref.path, replaced) == (copy.path, copy)
    assert store.unload(first.name) == first
