"""Reading of text between marks, such as tags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.syntax.machine import (
    MAX_NAME_CHARS,
    Machine,
    MalformedError,
    pattern_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.parsers.syntax.machine import Steps

_TOKEN = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]")


def tokens_in(*marks: str) -> tuple[str, ...]:
    """Return the parts of marks that a tokenizer may have as special tokens, once each."""
    return tuple(dict.fromkeys(token for mark in marks for token in _TOKEN.findall(mark)))


def first_chars(marks: Sequence[str]) -> str:
    """Return the characters that marks begin with."""
    return "".join(dict.fromkeys(mark[0] for mark in marks))


class MarkMachine(Machine):
    """A machine that reads marks. Of two marks, the longer comes first if one ends the other."""

    def one_of(self, marks: Sequence[str]) -> Steps[str]:
        """Read one of the marks, and return it.

        Raises:
            MalformedError: other text follows.
        """
        seen = ""
        while True:
            seen += self.char
            left = [mark for mark in marks if mark.startswith(seen)]
            if not self.char or not left:
                raise MalformedError
            yield from self.advance()
            if seen in left:
                return seen

    def beginning_of(self, mark: str) -> Steps[str]:
        """Read the mark, or as much of it as is there; return what was read."""
        for place, expected in enumerate(mark):
            if self.char != expected:
                return mark[:place]
            yield from self.skip()
        return mark

    def name_until(self, marks: Sequence[str]) -> Steps[tuple[str, str]]:
        """Hold the text up to one of the marks; return it without white space, and the mark.

        Raises:
            MalformedError: there is no mark, or too much text for a name.
        """
        parts: list[str] = []

        def take(text: str) -> None:
            parts.append(text)
            if sum(map(len, parts)) > MAX_NAME_CHARS:
                raise MalformedError

        mark = yield from self.until(marks, take, is_held=True)
        return "".join(parts).strip(), mark

    def until(
        self,
        marks: Sequence[str],
        take: Callable[[str], None],
        *,
        is_held: bool = False,
        keeps_rest: bool = False,
        begin: str = "",
    ) -> Steps[str]:
        """Read up to one of the marks, and return it. `take` gets the text as soon as it is sure,
        also in empty parts. With `is_held` it is held as well. `begin`: text that was read before.

        Raises:
            MalformedError: the text ends before a mark. If it ends with the beginning of one, that
                is dropped, or `keeps_rest`.
        """
        kept = begin
        starts = first_chars(marks)
        pattern = pattern_of(starts)
        while self.char:
            if not kept and not is_held and self.char not in starts:
                take(self.char)
                yield from self.idle(pattern, take)
                continue
            kept += self.char
            yield from (self.advance() if is_held else self.skip())
            for mark in marks:
                if kept.endswith(mark):
                    take(kept[: -len(mark)])
                    return mark
            num_sure = len(kept) - _num_open(kept, marks)
            take(kept[:num_sure])
            kept = kept[num_sure:]
        if keeps_rest:
            take(kept)
        raise MalformedError


def _num_open(text: str, marks: Sequence[str]) -> int:
    """Return how many of the last characters may begin a mark."""
    longest = max(map(len, marks)) - 1
    return next(
        (
            size
            for size in range(min(longest, len(text)), 0, -1)
            if any(mark.startswith(text[-size:]) for mark in marks)
        ),
        0,
    )
