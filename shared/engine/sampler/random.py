"""Random numbers that are a function of their use, so that no state is needed.

Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as
easy as 1, 2, 3" (SC 2011): a keyed bijection of 128-bit counters. The key is the request's seed;
the counter is (position, sample index, purpose, 0). Tested with the known answers of the authors'
Random123 library.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_NUM_ROUNDS = 10


class Purpose(IntEnum):
    """The use of a number; each use has a stream of its own. Never renumber."""

    SAMPLE = 0
    #: Acceptance of a drawn draft, replacement of a rejected one, drawing of the draft.
    ACCEPT = 1
    RECOVER = 2
    DRAFT = 3


def uniforms(
    seeds: Sequence[int],
    sample_indices: Sequence[int],
    positions: Sequence[int],
    purpose: Purpose = Purpose.SAMPLE,
) -> NDArray[np.float64]:
    """Return one number in [0, 1) per (seed, sample index, position), with 53 random bits each."""
    num = len(seeds)
    seed = np.array(seeds, dtype=np.uint64)
    counter = np.zeros((4, num), dtype=np.uint64)
    counter[0] = np.array(positions, dtype=np.uint64) & _LOW
    counter[1] = np.array(sample_indices, dtype=np.uint64) & _LOW
    counter[2] = int(purpose)
    words = philox4x32(counter, np.stack([seed & _LOW, seed >> _SHIFT]))
    bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))
    numbers: NDArray[np.float64] = bits * np.float64(2.0**-53)
    return numbers


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Encrypt counters [4, n] with keys [2, n]; every element is a 32-bit word."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (right >> _SHIFT) ^ c1 ^ k0,
            right & _LOW,
            (left >> _SHIFT) ^ c3 ^ k1,
            left & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])
