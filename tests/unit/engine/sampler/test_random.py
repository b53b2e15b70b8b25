"""The generator: the authors' known answers, uniformity, independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from shared.engine.sampler.random import philox4x32, uniforms

# philox4x32 with 10 rounds, from Random123's tests/kat_vectors: counter, key, expected.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(expected).tolist()


def test_a_number_does_not_depend_on_the_others() -> None:
    seeds, samples, positions = [1, 2**64 - 1, 0, 7], [0, 1, 2, 0], [5, 5, 0, 2**20]
    together = uniforms(seeds, samples, positions)
    alone = [
        uniforms([seed], [sample], [position])[0]
        for seed, sample, position in zip(seeds, samples, positions, strict=True)
    ]
    assert together.tolist() == alone


def test_every_input_matters() -> None:
    base = ([3], [0], [9])
    others = [([4], [0], [9]), ([3 + 2**32], [0], [9]), ([3], [1], [9]), ([3], [0], [10])]
    values = {uniforms(*args)[0] for args in (base, *others)}
    assert len(values) == 5


def test_numbers_are_uniform() -> None:
    numbers = uniforms([11] * 20_000, [0] * 20_000, range(20_000))
    assert 0 <= numbers.min() <= numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 43.8  # 99.9 % quantile with 19 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_golden_value() -> None:
    """Tokens of a seed must not change from one release to the next."""
    assert uniforms([1234], [0], [23])[0] == pytest.approx(GOLDEN, abs=0)


GOLDEN = 0.36343422735264963
