"""Copies are exact and the checksums are xxhash's, at every size around the algorithm's borders."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native.block_copy import SHORTEST_BLOCK_BYTES, checksum_blocks, copy_blocks

#: Around stripes of 64 bytes, blocks of 1024, and the size from which the cache is passed by.
SIZES = (241, 255, 256, 257, 1023, 1024, 1025, 1088, 4096, 131071, 131072, 131073, 196608)


def blocks(count: int, size: int, offset: int = 0) -> list[np.ndarray]:
    data = np.random.default_rng(size).integers(0, 256, offset + count * size, np.uint8)
    return [data[offset + i * size : offset + (i + 1) * size] for i in range(count)]


def check(size: int, offset: int) -> None:
    sources = blocks(3, size, offset)
    room = np.zeros(offset + 3 * size + 64, np.uint8)
    start = -room.ctypes.data % 64 + offset % 64
    targets = [room[start + i * size :][:size] for i in range(3)]
    targets = [target for target in targets if target.nbytes == size]
    expected = [xxhash.xxh3_64_intdigest(source.tobytes()) for source in sources]
    assert checksum_blocks(sources).tolist() == expected
    assert copy_blocks(targets, sources[: len(targets)]).tolist() == expected[: len(targets)]
    for target, source in zip(targets, sources, strict=False):
        assert np.array_equal(target, source)
    end = start + len(targets) * size
    assert not room[:start].any()
    assert not room[end:].any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1])
def test_sizes_around_the_borders(size: int, offset: int) -> None:
    check(size, offset)


@settings(deadline=None)
@given(size=st.integers(SHORTEST_BLOCK_BYTES, 5000), offset=st.integers(0, 63))
def test_any_size_and_place(size: int, offset: int) -> None:
    check(size, offset)


def test_no_blocks_are_no_work() -> None:
    assert checksum_blocks([]).size == copy_blocks([], []).size == 0


def test_blocks_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="one size"):
        checksum_blocks([*blocks(1, 300), *blocks(1, 301)])
