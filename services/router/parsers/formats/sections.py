"""Calls as a section of blocks, each with a header and its arguments as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.machine import MalformedError, check_name
from services.router.parsers.syntax.marks import first_chars, tokens_in

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps


@dataclass(frozen=True, kw_only=True)
class SectionFormat(HeldToList):
    """See ToolFormat. The fields are the marks, in the order of a section."""

    section: str
    call: str
    #: Each of them may stand between the header and the arguments.
    header_ends: tuple[str, ...]
    call_end: str
    section_end: str
    #: Tokens that are parts of marks.
    parts: tuple[str, ...] = ()
    #: Pattern of the header. Its group `name` is the function's; if it has a group `id`, that is
    #: the call's id, which the model's chat template expects back.
    header: re.Pattern[str] = re.compile("(?P<name>.*)")

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        ends = (*self.header_ends, self.call_end, self.section_end)
        return (*tokens_in(self.section, self.call, *ends), *self.parts)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the marks say that it is a call
        return SectionParser(self)


class SectionParser(JsonMachine):
    """Parses sections anywhere in the answer."""

    def __init__(self, marks: SectionFormat) -> None:
        super().__init__()
        self._marks = marks

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text(first_chars((self._marks.section,)), self._section)

    def _section(self) -> Steps[None]:
        marks = self._marks
        yield from self.expect(marks.section)
        yield from self.skip_space()
        yield from self.expect(marks.call)
        while True:
            self.in_tail = False
            yield from self._call()
            yield from self.skip_space()
            mark = yield from self.one_of((marks.call, marks.section_end))
            if mark != marks.call:
                return

    def _call(self) -> Steps[None]:
        marks = self._marks
        text, _ = yield from self.name_until(marks.header_ends)
        header = marks.header.fullmatch(text)
        if header is None:
            raise MalformedError
        yield from self.skip_space()
        groups = header.groupdict()
        check_name(groups["name"])
        yield from self.streamed_object(groups["name"], groups.get("id"))
        yield from self.skip_space()
        yield from self.expect(marks.call_end)
        self.drop()
