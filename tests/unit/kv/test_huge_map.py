"""What a mapping holds, how long, and where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from shared.kv.huge_map import HUGE_BYTES, HugeMap
from tests.fakes.processes.mappings import address_of, mapped_at

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NUM_BYTES = 5 * PAGE_BYTES + 3


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("mapped-here")
    os.ftruncate(fd, NUM_BYTES)
    yield fd
    os.close(fd)


def num_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("mapped-here")


def reserved_bytes() -> int:
    """Return the size of all room in which nothing may be accessed."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " ---p " in line:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            found += end - start
    return found


def test_it_starts_at_a_huge_page_and_ends_with_the_file(fd: int) -> None:
    mapping = HugeMap(fd, NUM_BYTES)
    address = address_of(mapping)
    assert address % HUGE_BYTES == 0
    assert mapped_at(address)["Size"] * 1024 == 6 * PAGE_BYTES
    mapping.bytes[NUM_BYTES - 1] = 8
    assert os.pread(fd, 2, NUM_BYTES - 1) == b"\x08"


def test_of_the_room_it_was_placed_in_nothing_is_left(fd: int) -> None:
    before = reserved_bytes()
    mapping = HugeMap(fd, NUM_BYTES)
    assert reserved_bytes() == before
    mapping.close()


def test_what_cannot_be_mapped_leaves_nothing(fd: int) -> None:
    before = reserved_bytes()
    with pytest.raises(OSError, match="Bad file descriptor"):
        HugeMap(1 << 20, NUM_BYTES)
    assert reserved_bytes() == before


def test_tensors_do_not_keep_a_closed_one(fd: int) -> None:
    mapping = HugeMap(fd, NUM_BYTES)
    tensor = torch.frombuffer(mapping.bytes, dtype=torch.uint8)[5:]
    tensor[0] = 7
    assert os.pread(fd, 1, 5) == b"\x07"
    mapping.close()
    assert num_mapped() == 0
    with pytest.raises(ValueError, match="closed"):
        _ = mapping.bytes
    mapping.close()
    del tensor


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_last_array_keeps_it(fd: int, is_closed: bool) -> None:
    mapping = HugeMap(fd, NUM_BYTES)
    part = mapping.array()[: 4 * PAGE_BYTES].reshape(4, -1)[2].view(np.uint16)
    other = mapping.array()
    part[:] = 0x0505
    if is_closed:
        mapping.close()
    del mapping, other
    assert num_mapped() == 1
    assert np.unique(part).tolist() == [0x0505]
    del part
    assert num_mapped() == 0


def test_the_last_tensor_keeps_one_that_is_dropped(fd: int) -> None:
    tensor = torch.frombuffer(HugeMap(fd, NUM_BYTES).bytes, dtype=torch.uint8)[5:]
    assert num_mapped() == 1
    assert tensor[0] == 0
    del tensor
    assert num_mapped() == 0
