"""The two ways to copy and hash blocks agree."""

from __future__ import annotations

import numpy as np
import pytest

from shared.connector.protocol import block_copy
from shared.kv.cut import Cut


@pytest.mark.parametrize("size", [64, 240, 241, 4096])
def test_with_and_without_the_library(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = list(np.random.default_rng(1).integers(0, 256, (5, size), np.uint8))
    results = []
    for has_library in (True, False):
        if not has_library:
            monkeypatch.setattr(block_copy, "has_library", lambda: False)
        targets = list(np.zeros((5, size), np.uint8))
        written = block_copy.copy_blocks(targets, sources).tolist()
        assert np.array_equal(targets, sources)
        assert written == block_copy.checksum_blocks(sources).tolist()
        results.append(written)
    assert results[0] == results[1]


CUTS = {
    "one-range-each": (Cut(((0, 400),)), Cut(((30, 400),))),
    "gathered": (Cut(((5, 300), (320, 41))), Cut(((0, 341),))),
    "scattered": (Cut(((0, 341),)), Cut(((5, 300), (320, 41)))),
    "both": (Cut(((0, 11), (100, 290))), Cut(((200, 300), (0, 1)))),
    "short": (Cut(((0, 7), (9, 2))), Cut(((3, 1), (5, 8)))),
}


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize("cut", CUTS)
def test_ranges_move_from_one_cut_to_another(
    cut: str, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between blocks of two sizes; each index has a cut of its own, and a checksum."""
    if not has_library:
        monkeypatch.setattr(block_copy, "has_library", lambda: False)
    sent, received = zip(CUTS["one-range-each"], CUTS[cut], strict=True)
    rng = np.random.default_rng(1)
    sources, targets = rng.integers(0, 256, (4, 500), np.uint8), np.zeros((6, 600), np.uint8)
    packed = [_packed(sources[block], each) for block, each in zip([3, 1], sent, strict=True)]
    wanted = targets.copy()
    for block, each, data in zip([0, 5], received, packed, strict=True):
        at = 0
        for start, size in each.ranges:
            wanted[block, start : start + size] = data[at : at + size]
            at += size
    here = block_copy.block_ranges(sources, [3, 1], sent)
    there = block_copy.block_ranges(targets, [0, 5], received)
    expected = [block_copy.block_checksum(data) for data in packed]
    assert block_copy.copy_ranges(None, here).tolist() == expected
    assert not targets.any()
    assert block_copy.copy_ranges(there, here).tolist() == expected
    assert np.array_equal(targets, wanted)
    targets[:] = 0
    arrays = [np.concatenate(packed)]
    together = block_copy.consecutive_ranges(arrays, [len(data) for data in packed])
    assert together.item_bytes.tolist() == [len(data) for data in packed]
    assert block_copy.copy_ranges(there, together).tolist() == expected
    assert np.array_equal(targets, wanted)


def test_packed_items_end_with_their_part() -> None:
    parts = [np.zeros(5, np.uint8), np.zeros(3, np.uint8)]
    assert block_copy.consecutive_ranges(parts, [2, 3, 3]).item_bytes.tolist() == [2, 3, 3]
    for sizes in ([2, 4, 2], [2, 3], [2, 3, 2], [2, 3, 3, 1]):
        with pytest.raises(ValueError, match=r"item"):
            block_copy.consecutive_ranges(parts, sizes)


def _packed(block: np.ndarray, cut: Cut) -> np.ndarray:
    return np.concatenate([block[start : start + size] for start, size in cut.ranges])
