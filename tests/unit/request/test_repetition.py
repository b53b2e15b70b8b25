"""The first repetition in an answer's tokens."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from shared.errors import InvalidRequestError
from shared.request.repetition import (
    MAX_PATTERN_SIZE,
    RepetitionDetection,
    RepetitionDetector,
    read_repetition,
)


def first_end(text: str, **wanted: int) -> int | None:
    """How many tokens there are when a repetition is found."""
    detector = RepetitionDetector(RepetitionDetection(**wanted))
    return next((n for n, char in enumerate(text, 1) if detector.feed(ord(char))), None)


@pytest.mark.parametrize(
    ("text", "wanted", "end"),
    [
        ("xabcabcabc", {"max_pattern_size": 3, "min_count": 3}, 10),
        ("xabcabcabc", {"max_pattern_size": 3, "min_count": 2}, 7),
        ("xabcabcabc", {"max_pattern_size": 2, "min_count": 2}, None),
        ("aab", {"max_pattern_size": 3, "min_count": 2}, 2),
        ("aabab", {"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 2}, 5),
        ("aaaa", {"max_pattern_size": 2, "min_pattern_size": 2, "min_count": 2}, 4),
        ("aaaaaaaa", {}, None),
        ("abcabcab", {"max_pattern_size": 3, "min_count": 3}, None),
    ],
)
def test_a_pattern_comes_often_enough(text: str, wanted: dict[str, int], end: int | None) -> None:
    assert first_end(text, **wanted) == end


def test_it_is_what_comparing_all_tokens_finds() -> None:
    random = Random(3)
    for _ in range(300):
        text = "".join(random.choices("ab", k=random.randrange(1, 30)))
        least, count = random.randrange(1, 5), random.randrange(2, 5)
        most = least + random.randrange(4)
        naive = next(
            (
                n
                for n in range(1, len(text) + 1)
                for size in range(least, most + 1)
                if size * count <= n and text[n - size * count : n] == text[n - size : n] * count
            ),
            None,
        )
        wanted = {"min_pattern_size": least, "max_pattern_size": most, "min_count": count}
        assert first_end(text, **wanted) == naive, (text, wanted)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size must be an integer of at least 0, not -1"),
        ({"max_pattern_size": True, "min_count": 2}, "must be an integer"),
        ({"max_pattern_size": MAX_PATTERN_SIZE + 1, "min_count": 2}, "at most 1024"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size must"),
        ({"max_pattern_size": 2, "min_count": 1}, "min_count must be at least 2"),
        ({"pattern": 2}, "but no pattern"),
        (3, "must be an object with max_pattern_size"),
    ],
)
def test_what_is_wrong_is_said(value: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as raised:
        read_repetition(value)
    assert raised.value.param == "repetition_detection"


def test_it_may_be_given_in_three_ways() -> None:
    wanted = RepetitionDetection(max_pattern_size=2, min_count=3)
    fields = {"max_pattern_size": 2, "min_count": 3}
    theirs = SimpleNamespace(**fields, min_pattern_size=0)
    assert read_repetition(fields) == read_repetition(theirs) == read_repetition(wanted) == wanted
    assert read_repetition(None) is None
