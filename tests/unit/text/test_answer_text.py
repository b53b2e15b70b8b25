from __future__ import annotations

import pytest

from shared.request.repetition import RepetitionDetection, RepetitionDetector
from shared.text.answer_text import AnswerText, TextPiece
from tests.fakes.text import tiny_tokenizer

TOKENIZER = tiny_tokenizer.load()
EOS = TOKENIZER.token_id("<|im_end|>") or 0


def _ids(text: str) -> list[int]:
    """One token per byte, so that every character is a token of its own."""
    return [i for char in text for i in TOKENIZER.encode(char)]


def test_all_tokens_count_without_stop_strings() -> None:
    answer = AnswerText(TOKENIZER)
    assert answer.feed(_ids("ab")) == TextPiece("ab", 2)
    assert answer.feed(_ids("c"), final=True) == TextPiece("c", 1)
    assert answer.num_tokens == 3


def test_tokens_after_a_stop_string_do_not_count() -> None:
    answer = AnswerText(TOKENIZER, stop=["cd"])
    assert answer.feed(_ids("abc")) == TextPiece("ab", 3)
    assert answer.feed(_ids("def")) == TextPiece("", 1, "cd")
    assert answer.num_tokens == 4


def test_the_stop_string_is_kept_if_wanted() -> None:
    answer = AnswerText(TOKENIZER, stop=["cd"], include_stop_str_in_output=True)
    assert answer.feed(_ids("abcde")) == TextPiece("abcd", 4, "cd")


def test_what_was_held_back_comes_at_the_end() -> None:
    answer = AnswerText(TOKENIZER, stop=["cd"])
    assert answer.feed(_ids("abc")) == TextPiece("ab", 3)
    assert answer.feed((EOS,), final=True, stop_token_id=EOS) == TextPiece("c", 1)


@pytest.mark.parametrize(("stop", "text"), [((), "a"), (("zz",), "a")])
def test_the_token_that_ended_it_is_no_text(stop: tuple[str, ...], text: str) -> None:
    ids = _ids("ab")
    answer = AnswerText(TOKENIZER, stop=stop)
    assert answer.feed(ids, final=True, stop_token_id=ids[-1]) == TextPiece(text, 2)
    kept = AnswerText(TOKENIZER, stop=stop, include_stop_str_in_output=True)
    assert kept.feed(ids, final=True, stop_token_id=ids[-1]) == TextPiece("ab", 2)


def test_stop_strings_are_not_looked_for_before_min_tokens() -> None:
    answer = AnswerText(TOKENIZER, stop=["b"], min_tokens=3)
    assert answer.feed(_ids("ab")) == TextPiece("ab", 2)
    assert answer.feed(_ids("bcb")) == TextPiece("bc", 3, "b")


def test_a_stop_string_may_begin_before_min_tokens() -> None:
    answer = AnswerText(TOKENIZER, stop=["bc"], min_tokens=2)
    assert answer.feed(_ids("ab")) == TextPiece("a", 2)
    assert answer.feed(_ids("c")) == TextPiece("", 1, "bc")


def test_half_a_character_at_the_end_is_replaced() -> None:
    answer = AnswerText(TOKENIZER, stop=["zz"])
    half = TOKENIZER.encode("🙂")[:1]
    assert answer.feed(half, final=True) == TextPiece("\ufffd", 1)


def test_a_repetition_ends_the_text_with_the_token_that_completes_it() -> None:
    wanted = RepetitionDetection(max_pattern_size=2, min_count=3)
    ids = TOKENIZER.encode("x" + "ab" * 9)
    assert len(ids) == 19, "a token per character"
    answer = AnswerText(TOKENIZER, repeats=RepetitionDetector(wanted).feed)
    piece = answer.feed(ids)
    assert piece == TextPiece("xababab", 7, repeats=True)
    assert answer.num_tokens == 7


def test_min_tokens_and_the_engines_own_end_come_before_a_repetition() -> None:
    wanted = RepetitionDetection(max_pattern_size=1, min_count=2)
    ids = TOKENIZER.encode("xxxx")
    answer = AnswerText(TOKENIZER, repeats=RepetitionDetector(wanted).feed, min_tokens=3)
    assert answer.feed(ids[:3]) == TextPiece("xxx", 3)
    assert answer.feed(ids[3:], final=True) == TextPiece("x", 1)
    held = AnswerText(TOKENIZER, repeats=RepetitionDetector(wanted).feed, stop=["xy"])
    assert held.feed(ids).text == "xx"
