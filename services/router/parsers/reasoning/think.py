"""Reasoning between marks such as <think> and </think>, before the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.syntax.marks import MarkMachine, first_chars, tokens_in

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser
    from services.router.parsers.syntax.machine import Steps


class Opening(Enum):
    """The position at which an answer begins."""

    #: Within the reasoning.
    INSIDE = auto()
    #: Before the reasoning, if there is any.
    BEFORE = auto()
    #: After the reasoning.
    BEYOND = auto()


@dataclass(frozen=True, kw_only=True)
class ThinkFormat:
    """See ReasoningFormat. Of several spellings of a mark, the first is the usual one."""

    begins: tuple[str, ...] = ("<think>",)
    #: For each of `begins` the mark that closes it. A model may mix them.
    ends: tuple[str, ...] = ("</think>",)
    #: Marks of calls that end the reasoning as well, and belong to what follows.
    calls: tuple[str, ...] = ()
    #: Marks around the text after the reasoning, if the model writes any.
    answer: tuple[str, str] | None = None
    #: Marks that are dropped from the text after the reasoning, wherever they are.
    silent: tuple[str, ...] = ()
    #: Whether answers begin within the reasoning even where nothing opens it.
    opens_unsaid: bool = False

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ReasoningFormat."""
        return tokens_in(*self.begins, *self.ends, *self.calls, *(self.answer or ()), *self.silent)

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        return ThinkParser(self, self._opening(prompt))

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat."""
        opening = self._opening(prompt)
        if opening is Opening.BEYOND:
            return None
        end = prompt.rstrip()
        pairs = zip(self.begins, self.ends, strict=True)
        pair = next((pair for pair in pairs if end.endswith(pair[0])), None)
        begin, end = pair or (self.begins[0], self.ends[0])
        return ReasoningMarks(begin=begin, end=end, is_open=opening is Opening.INSIDE)

    def _opening(self, prompt: str) -> Opening:
        end = prompt.rstrip()
        if end.endswith(self.ends):
            return Opening.BEYOND
        is_open = self.opens_unsaid or end.endswith(self.begins)
        return Opening.INSIDE if is_open else Opening.BEFORE


class ThinkParser(MarkMachine):
    """Parses marked reasoning. White space around the marks belongs to neither side."""

    def __init__(self, marks: ThinkFormat, opening: Opening) -> None:
        super().__init__()
        self._marks = marks
        self._opening = opening
        self._in_answer = False

    def run(self) -> Steps[None]:
        """See Machine."""
        self.holds_space = False
        if self._opening is Opening.INSIDE:
            self._enter()
        if self._opening is not Opening.BEYOND:
            yield from self.skip_space()
            if self._opening is Opening.INSIDE:
                self.drop()
            yield from self.attempt(self._begin())
        if self._opening is Opening.INSIDE:
            yield from self.skip_space()
            self.drop()
            ends = (*self._marks.ends, *self._marks.calls)
            yield from self.read_text(first_chars(ends), lambda: self._end(ends), once=True)
        if self._marks.answer is None:
            silent = self._marks.silent
            self.holds_space = bool(silent)
            yield from self.read_text(first_chars(silent), lambda: self._silent(silent))
        else:
            yield from self._answer(*self._marks.answer)

    def _begin(self) -> Steps[None]:
        """Read the mark that begins the reasoning, or that of an answer without any."""
        answer = self._marks.answer
        mark = yield from self.one_of((*self._marks.begins, *(answer or ())[:1]))
        if answer is not None and mark == answer[0]:
            yield from self._open_answer()
        else:
            self._opening = Opening.INSIDE
            self._enter()

    def _enter(self) -> None:
        self.speak(ReasoningDelta)
        self.holds_space = True

    def _end(self, ends: tuple[str, ...]) -> Steps[None]:
        mark = yield from self.one_of(ends)
        self.speak(ContentDelta)
        self.holds_space = False
        if mark in self._marks.calls:
            self.text(mark)
        else:
            yield from self.skip_space()
            self.drop()

    def _silent(self, marks: tuple[str, ...]) -> Steps[None]:
        yield from self.one_of(marks)
        self.drop()

    def _answer(self, begin: str, end: str) -> Steps[None]:
        if not self._in_answer:
            yield from self.skip_space()
            yield from self.attempt(self._answer_begin(begin))
        if self._in_answer:
            yield from self.read_text(end[0], lambda: self._answer_end(end), once=True)
        yield from self.read_text("")

    def _answer_begin(self, mark: str) -> Steps[None]:
        yield from self.expect(mark)
        yield from self._open_answer()

    def _open_answer(self) -> Steps[None]:
        yield from self.skip_space()
        self.drop()
        self._in_answer = True
        self.holds_space = True

    def _answer_end(self, mark: str) -> Steps[None]:
        yield from self.expect(mark)
        yield from self.skip_space()
        self.drop()
