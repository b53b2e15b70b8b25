"""Calls as JSON behind a mark: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.marks import first_chars, tokens_in

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps


@dataclass(frozen=True, kw_only=True)
class MarkedJsonFormat(HeldToList):
    """See ToolFormat."""

    #: Each of them begins calls.
    begins: tuple[str, ...]
    #: Ends them. It may be missing.
    end: str

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return tokens_in(*self.begins, self.end)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the marks say that it is a call
        return MarkedJsonParser(self)


class MarkedJsonParser(JsonMachine):
    """Parses calls anywhere in the answer."""

    def __init__(self, marks: MarkedJsonFormat) -> None:
        super().__init__()
        self._marks = marks

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text(first_chars(self._marks.begins), self._calls)

    def _calls(self) -> Steps[None]:
        marks = self._marks
        yield from self.one_of(marks.begins)
        while True:
            yield from self.skip_space()
            yield from self.call_object()
            yield from self.skip_space()
            mark = yield from self.one_of((marks.end, *marks.begins))
            if mark == marks.end:
                return
