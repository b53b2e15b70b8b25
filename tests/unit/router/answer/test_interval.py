"""Pieces of several tokens: what is held back, and what never is."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from services.router.answer.interval import in_intervals
from services.router.request.generation import AnswerPiece, TokenDetail, TokenText
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

END = FinishReason.STOP


def token(char: str, index: int = 0, finish: FinishReason | None = None) -> AnswerPiece:
    detail = TokenDetail(TokenText(ord(char), char, char.encode(), -1.0, 1))
    return AnswerPiece(
        index=index, text=char, token_ids=(ord(char),), details=(detail,), finish_reason=finish
    )


async def pieces(num_tokens: int, *source: AnswerPiece) -> list[AnswerPiece]:
    async def answers() -> AsyncGenerator[AnswerPiece, None]:
        for piece in source:
            yield piece

    async with aclosing(in_intervals(answers(), num_tokens)) as found:
        return [piece async for piece in found]


async def test_the_first_comes_at_once_and_the_end_waits_for_nothing() -> None:
    *source, last = "abcdefgh"
    found = await pieces(3, *map(token, source), token(last, finish=END))
    assert [piece.text for piece in found] == ["a", "bcd", "efg", "h"]
    assert found[-1].finish_reason is END
    for piece in found:
        said = "".join(map(chr, piece.token_ids))
        assert said == piece.text == "".join(detail.chosen.text for detail in piece.details)


async def test_a_piece_without_tokens_is_not_the_first() -> None:
    empty = AnswerPiece(index=0, identity="weights")
    found = await pieces(3, empty, token("a"), token("b"), token("c", finish=END))
    assert [(piece.text, piece.identity) for piece in found] == [("a", "weights"), ("bc", "")]


async def test_answers_are_counted_apart() -> None:
    source = [token(char, index) for char in "abc" for index in (0, 1)]
    found = await pieces(2, *source, token("d", 1, END), token("d", 0, END))
    assert [p.text for p in found if p.index == 0] == ["a", "bc", "d"]
    assert [p.text for p in found if p.index == 1] == ["a", "bc", "d"]


async def test_a_failure_is_passed_on() -> None:
    async def answers() -> AsyncGenerator[AnswerPiece, None]:
        yield token("a")
        yield token("b")
        raise ValueError("lost")

    stream = in_intervals(answers(), 5)
    assert (await anext(stream)).text == "a"
    with pytest.raises(ValueError, match="lost"):
        await anext(stream)


async def test_each_piece_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replace, copied = msgspec.structs.replace, []

    def noted(piece: AnswerPiece, **changes: Any) -> AnswerPiece:
        copied.append(len(changes["token_ids"]))
        return replace(piece, **changes)

    monkeypatch.setattr(msgspec.structs, "replace", noted)
    source = [token("x") for _ in range(100)]
    found = await pieces(1000, *source, token("y", finish=END))
    assert [len(piece.token_ids) for piece in found] == [1, 100]
    assert copied == [100]
