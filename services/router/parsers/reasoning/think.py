"""Reasoning between <think> and </think>, before the answer."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.syntax.machine import Machine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser
    from services.router.parsers.syntax.machine import Steps

BEGIN, END = "<think>", "</think>"


class Opening(Enum):
    """The position at which an answer begins."""

    #: Within the reasoning.
    INSIDE = auto()
    #: Before the reasoning, if there is any.
    BEFORE = auto()
    #: After the reasoning.
    BEYOND = auto()


class ThinkParser(Machine):
    """Parses tagged reasoning. White space around the tags belongs to neither side."""

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._opening = opening

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
            yield from self.read_text("<", self._end, once=True)
            if self.char:
                yield from self.skip_space()
                self.drop()
        yield from self.read_text("")

    def _begin(self) -> Steps[None]:
        yield from self.expect(BEGIN)
        self._opening = Opening.INSIDE
        self._enter()

    def _enter(self) -> None:
        self.speak(ReasoningDelta)
        self.holds_space = True

    def _end(self) -> Steps[None]:
        yield from self.expect(END)
        self.speak(ContentDelta)
        self.holds_space = False


class ThinkFormat:
    """See ReasoningFormat."""

    special_tokens = (BEGIN, END)

    def __init__(self, *, opens_unsaid: bool) -> None:
        """Set how answers begin.

        `opens_unsaid`: they begin within the reasoning even without a begin tag, as those of
        DeepSeek R1.
        """
        self._opens_unsaid = opens_unsaid

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        return ThinkParser(self._opening(prompt))

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat."""
        opening = self._opening(prompt)
        if opening is Opening.BEYOND:
            return None
        return ReasoningMarks(begin=BEGIN, end=END, is_open=opening is Opening.INSIDE)

    def _opening(self, prompt: str) -> Opening:
        end = prompt.rstrip()
        if end.endswith(END):
            return Opening.BEYOND
        is_open = self._opens_unsaid or end.endswith(BEGIN)
        return Opening.INSIDE if is_open else Opening.BEFORE
