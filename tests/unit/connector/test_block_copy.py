"""The two ways to copy and hash blocks agree."""

from __future__ import annotations

import numpy as np
import pytest

from shared.connector.protocol import block_copy


@pytest.mark.parametrize("size", [64, 240, 241, 4096])
def test_with_and_without_the_library(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = list(np.random.default_rng(1).integers(0, 256, (5, size), np.uint8))
    results = []
    for has_library in (True, False):
        if not has_library:
            monkeypatch.setattr(block_copy, "_has_library", lambda: False)
        targets = list(np.zeros((5, size), np.uint8))
        written = block_copy.copy_blocks(targets, sources).tolist()
        assert np.array_equal(targets, sources)
        assert written == block_copy.checksum_blocks(sources).tolist()
        results.append(written)
    assert results[0] == results[1]
