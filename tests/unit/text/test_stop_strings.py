from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.text.stop_strings import StopStrings


def _reference(
    text: str, stops: list[str], num_unarmed: int, *, include: bool
) -> tuple[str, str | None]:
    """What should come out, character by character."""
    for end in range(num_unarmed + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


@given(
    text=st.text("abc", max_size=16),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 16), max_size=6),
    num_unarmed_pieces=st.integers(0, 2),
    include=st.booleans(),
)
@settings(max_examples=400)
def test_every_way_to_cut_the_text_gives_the_same(
    text: str, stops: list[str], cuts: list[int], num_unarmed_pieces: int, include: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    matcher = StopStrings(stops, include_in_output=include)
    num_unarmed = 0
    shown = ""
    expected = None
    for place, piece in enumerate(pieces):
        armed = place >= num_unarmed_pieces
        num_unarmed += 0 if armed else len(piece)
        shown += matcher.feed(piece, armed=armed)
        if matcher.matched:
            break
    else:
        shown += matcher.flush()
    expected = _reference(text, stops, num_unarmed, include=include)
    assert (shown, matcher.matched) == expected


@given(text=st.text("ab", max_size=12), stop=st.text("ab", min_size=1, max_size=5))
@settings(max_examples=200)
def test_no_beginning_of_a_stop_string_is_shown_too_early(text: str, stop: str) -> None:
    matcher = StopStrings([stop])
    seen = shown = ""
    for char in text:
        seen += char
        shown += matcher.feed(char)
        if matcher.matched:
            break
        # All that is held back could still become the stop string, and no more is held back.
        held = seen[len(shown) :]
        could_be = [n for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert len(held) == max(could_be)


def test_the_match_that_ends_first_wins() -> None:
    matcher = StopStrings(["abcd", "bc"])
    assert matcher.feed("xabcdy") == "xa"
    assert matcher.matched == "bc"


def test_the_longer_of_two_that_end_together_wins() -> None:
    matcher = StopStrings(["c", "abc"])
    assert matcher.feed("xabc") == "x"
    assert matcher.matched == "abc"


def test_nothing_comes_after_a_match() -> None:
    matcher = StopStrings(["."])
    assert matcher.feed("a.b") == "a"
    assert matcher.feed("c") == ""
    assert matcher.flush() == ""


def test_without_stop_strings_text_passes() -> None:
    matcher = StopStrings(["", ""])
    assert matcher.feed("anything") == "anything"
    assert matcher.flush() == ""
