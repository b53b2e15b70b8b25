"""Memory is ready before it is used, and the contents stay what they are."""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

import psutil
import pytest
from structlog.testing import capture_logs

from shared.kv import huge_map, prefault
from shared.kv.huge_map import HugeMap
from shared.kv.prefault import Prefault
from tests.fakes.processes.mappings import address_of, mapped_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[HugeMap]:
    monkeypatch.setattr(prefault, "AHEAD_BYTES", 8 * MIB)
    fd = os.memfd_create("prepared")
    os.ftruncate(fd, 64 * MIB)
    mapped = HugeMap(fd, 64 * MIB)
    os.close(fd)
    yield mapped
    mapped.close()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_memory_is_backed_ahead_of_the_mark_and_no_further(memory: HugeMap) -> None:
    process = psutil.Process()
    memory.bytes[0:3] = b"abc"
    before = process.memory_info().rss
    ready = Prefault(memory)
    assert 7 * MIB <= process.memory_info().rss - before < 16 * MIB
    ready.reach(24 * MIB)
    wait_until(lambda: process.memory_info().rss - before >= 31 * MIB)
    ready.reach(2 * MIB)
    ready.close()
    assert process.memory_info().rss - before < 48 * MIB
    assert bytes(memory.bytes[0:3]) == b"abc"


def test_a_mark_past_the_end_stops_at_the_end(memory: HugeMap) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    ready = Prefault(memory)
    ready.reach(1000 * MIB)
    wait_until(lambda: process.memory_info().rss - before >= 63 * MIB)
    ready.close()


def test_what_is_prepared_is_in_huge_pages_and_keeps_its_contents(memory: HugeMap) -> None:
    memory.bytes[5 * MIB] = memory.bytes[33 * MIB] = 9
    ready = Prefault(memory)
    ready.reach(64 * MIB)
    wait_until(lambda: mapped_at(address_of(memory))["Rss"] == 64 << 10)
    ready.close()
    assert bytes(memory.bytes).count(9) == 2
    assert memory.bytes[5 * MIB] == memory.bytes[33 * MIB] == 9
    try:
        memory.collapse(0)
    except OSError as error:
        pytest.skip(f"this system makes no huge pages of files in memory: {error}")
    assert mapped_at(address_of(memory))["ShmemPmdMapped"] == 64 << 10


def test_without_huge_pages_there_are_small_ones(
    memory: HugeMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_map, "_COLLAPSE", 9999)
    with capture_logs() as logs:
        ready = Prefault(memory)
        ready.reach(64 * MIB)
        wait_until(lambda: mapped_at(address_of(memory))["Rss"] == 64 << 10)
    ready.close()
    assert mapped_at(address_of(memory))["ShmemPmdMapped"] == 0
    assert [entry["event"] for entry in logs] == ["small_pages"]


@pytest.mark.parametrize(("number", "num_tries"), [(errno.EAGAIN, 4), (errno.EINVAL, 1)])
def test_after_a_refusal_it_tries_again_unless_that_is_in_vain(
    memory: HugeMap, monkeypatch: pytest.MonkeyPatch, number: int, num_tries: int
) -> None:
    tries = []

    def refuse(_self: HugeMap, start: int) -> None:
        tries.append(start)
        raise OSError(number, "refused")

    monkeypatch.setattr(HugeMap, "collapse", refuse)
    with capture_logs() as logs:
        Prefault(memory)
    assert tries == [2 * page * MIB for page in range(num_tries)]
    assert [entry["event"] for entry in logs] == ["small_pages"]


def test_a_thread_keeps_no_memory_that_is_dropped(memory: HugeMap) -> None:
    ready = Prefault(memory)
    ready.reach(64 * MIB)
    dropped = weakref.ref(ready)
    del ready
    wait_until(lambda: dropped() is None)


def test_a_closed_one_has_no_thread(memory: HugeMap) -> None:
    ready = Prefault(memory)
    ready.reach(40 * MIB)
    ready.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefault"]
    ready.reach(64 * MIB)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefault"]


def test_a_system_that_cannot_do_it_is_left_alone(
    memory: HugeMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_map, "_POPULATE_WRITE", 9999)
    with capture_logs() as logs:
        ready = Prefault(memory)
        ready.reach(64 * MIB)
        ready.close()
    memory.bytes[-1] = 1
    assert [entry["event"] for entry in logs] == ["not_prefaulted"]
