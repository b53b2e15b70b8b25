"""Texts for calibration and perplexity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.errors import CommandError
from cli.places import SHIPPED_MODEL
from cli.quantize.texts import Text, TextReader, digest, hold_out
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = Tokenizer.load(SHIPPED_MODEL)
WORDS = "one two three four five six seven eight nine ten"


def reader(*, num_samples: int = 100, num_tokens: int = 8) -> TextReader:
    return TextReader(SHIPPED_MODEL, num_samples=num_samples, num_tokens=num_tokens)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_text_is_cut_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text(WORDS)
    pieces = reader(num_tokens=4).read(path)
    tokens = [token for piece in pieces for token in piece.tokens]
    every = TOKENIZER.encode(WORDS)
    assert tokens == every[: len(tokens)]
    assert len(every) - len(tokens) < 2  # a token without one before it says nothing
    assert {len(piece.tokens) for piece in pieces[:-1]} == {4}
    assert {piece.num_given for piece in pieces} == {1}


def test_samples_are_spread_over_a_file(tmp_path: Path) -> None:
    rows = [{"text": f"{WORDS} {number}"} for number in range(20)]
    every = reader().read(lines(tmp_path / "rows.jsonl", *rows))
    some = reader(num_samples=5).read(tmp_path / "rows.jsonl")
    assert some == [every[len(every) * n // 5] for n in range(5)]


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    """Strings may have what only Unicode takes for the end of a line."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "one\u2028two"}, ensure_ascii=False) + "\r\n")
    (text,) = reader(num_tokens=100).read(path)
    assert TOKENIZER.decode(text.tokens) == "one\u2028two"


def test_of_a_conversation_only_the_last_message_is_scored(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there"}]
    path = lines(tmp_path / "chat.jsonl", {"messages": messages})
    (text,) = reader(num_tokens=100).read(path)
    assert TOKENIZER.decode(text.tokens[text.num_given :]).startswith("Hi there")
    assert "Hello" in TOKENIZER.decode(text.tokens[: text.num_given])
    pieces = reader(num_tokens=5).read(path)
    assert sum(len(each.tokens) - each.num_given for each in pieces) <= len(text.tokens)
    assert all(each.num_given < len(each.tokens) for each in pieces)


def test_the_last_tenth_is_held_out() -> None:
    texts = [Text([n, n]) for n in range(25)]
    seen, unseen = hold_out(texts)
    assert seen + unseen == texts
    assert len(unseen) == 2
    with pytest.raises(CommandError, match="one text only"):
        hold_out(texts[:1])


def test_the_digest_is_that_of_the_tokens() -> None:
    assert digest([Text([1, 2])]) == digest([Text([1, 2], num_given=2)])
    assert digest([Text([1, 2])]) != digest([Text([1, 3])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no text of two tokens"),
        ('{"text": "one two"}\n{"words": 3}\n', 'line 2 has neither "text" nor "messages"'),
        ("[1]\n", "line 1 has neither"),
        ('{"text"\n', "line 1 is not valid JSON"),
    ],
)
def test_bad_files_are_explained(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(CommandError, match=message):
        reader().read(path)
    with pytest.raises(CommandError, match="cannot read"):
        reader().read(tmp_path / "missing.txt")
