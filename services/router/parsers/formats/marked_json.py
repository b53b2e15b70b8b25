"""Calls as JSON behind a mark: <tool_call>{"name": …, "arguments": {…}}</tool_call>.

Behind the mark is one call, or a list of calls, or one call after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.call_tag import tag_among_text
from services.router.parsers.syntax.json_call import JsonMachine, any_name
from services.router.parsers.syntax.marks import first_chars, tokens_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.parsers.base import TextParser, Tools, ToolSpec
    from services.router.parsers.syntax.json_call import IsKnown
    from services.router.parsers.syntax.machine import Steps


@dataclass(frozen=True, kw_only=True)
class MarkedJsonFormat(HeldToList):
    """See ToolFormat."""

    #: Each of them begins calls.
    begins: tuple[str, ...]
    #: Each of them ends calls. The format may have none, and a model may forget it.
    ends: tuple[str, ...] = ()
    #: Whether calls may also begin the answer without a mark. Calls of such a format must name a
    #: function of the request: other JSON is text.
    bare: bool = False
    #: Whether a call is {name: arguments}.
    is_keyed: bool = False
    #: Whether each call has its own pair of marks, with or without line breaks within them.
    marks_each: bool = False
    arguments: str = "arguments"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return tokens_in(*self.begins, *self.ends)

    def tag_among_text(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any] | None:
        """See ToolFormat."""
        if not self.marks_each:
            return None
        return tag_among_text(
            tools,
            marks=(self.begins[0], self.ends[0]),
            arguments=self.arguments,
            parallel=parallel,
        )

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        # Otherwise the marks say that it is a call.
        return MarkedJsonParser(self, tools.__contains__ if self.bare else any_name)


class MarkedJsonParser(JsonMachine):
    """Parses calls anywhere in the answer."""

    def __init__(self, marks: MarkedJsonFormat, is_known: IsKnown) -> None:
        super().__init__()
        self._marks = marks
        self._is_known = is_known

    def run(self) -> Steps[None]:
        """See Machine."""
        if self._marks.bare:
            yield from self.skip_space()
            if self.char and self.char in "{[":
                yield from self.attempt(self._json())
            self.give_back()
        yield from self.read_text(first_chars(self._marks.begins), self._calls)

    def _calls(self) -> Steps[None]:
        marks = self._marks
        yield from self.one_of(marks.begins)
        while True:
            yield from self._json()
            if not marks.ends:
                return
            yield from self.skip_space()
            if self.char == "{":
                continue
            mark = yield from self.one_of((*marks.ends, *marks.begins))
            if mark in marks.ends:
                return

    def _json(self) -> Steps[None]:
        yield from self.skip_space()
        if self.char == "[":
            yield from self.call_list(self._call)
        else:
            yield from self._call()

    def _call(self) -> Steps[None]:
        if self._marks.is_keyed:
            return self.keyed_object()
        return self.call_object(self._is_known)
