"""The input of custom tools, from arguments that come in any pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.parsers.custom import InputDecoder


def decoded(pieces: list[str]) -> tuple[list[str], str]:
    """What came at each piece, and at the end."""
    decoder = InputDecoder()
    return [decoder.feed(piece) for piece in pieces], decoder.finish()


TEXTS = ["", "a", 'say "hi"\n', "\\", "é𝄞𝄞", "\u2028\x00\t", "\\u0041", "{}"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("layout", ["{}", ' {{\n "input" :  {0}\n}}\n', None])
def test_a_text_is_the_same_in_any_pieces(text: str, ascii_only: bool, layout: str | None) -> None:
    whole = json.dumps({"input": text}, ensure_ascii=ascii_only)
    if layout not in (None, "{}"):
        whole = layout.format(json.dumps(text, ensure_ascii=ascii_only))  # type: ignore[union-attr]
    for size in (1, 2, 3, 5, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        came, rest = decoded(pieces)
        assert "".join(came) + rest == text


@given(st.text(), st.lists(st.integers(0, 40), max_size=8))
def test_any_text_comes_back(text: str, cuts: list[int]) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = json.dumps({"input": text})
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    came, rest = decoded(pieces)
    assert "".join(came) + rest == text


def test_a_text_comes_while_it_is_written() -> None:
    came, rest = decoded(['{"inp', 'ut": "a', "b\\", "n", '"', "}"])
    assert (came, rest) == (["", "a", "b", "\n", "", ""], "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("ls -l", "ls -l"),
        ('{"other": 1, "input": "a"}', "a"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "a', "a"),
        ('{"input": "a\\u12', "a"),
        ('{"input": "a\\ud834 b and more text", "x": 1}', "a\\ud834 b and more text"),
        ("", ""),
    ],
)
def test_other_arguments_are_the_input(arguments: str, text: str) -> None:
    for pieces in ([arguments], list(arguments)):
        came, rest = decoded(pieces)
        assert "".join(came) + rest == text
