"""Calls with arguments between tags: <function=f><parameter=city>Rome</parameter></function>.

Arguments are plain text. The tool's schema says which of them are strings; the others become JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.machine import MalformedError, check_name
from services.router.parsers.syntax.marks import MarkMachine, first_chars, tokens_in
from services.router.parsers.syntax.values import as_json, inside_string, string, types_of

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

_STRING = frozenset({"string"})


@dataclass(frozen=True, kw_only=True)
class XmlFormat(HeldToList):
    """See ToolFormat. The fields are the tags, in the order of a call."""

    #: Around calls; None: each call stands alone.
    block: tuple[str, str] | None = None
    call: str
    #: Behind the function's name. None: the next tag ends it.
    name_end: str | None = ">"
    key: str
    #: Behind an argument's name; for each, the types that it says the value has.
    key_ends: tuple[tuple[str, frozenset[str]], ...] = ((">", frozenset()),)
    #: Before the value, if there is something.
    value: str = ""
    value_end: str
    call_end: str
    #: Whether a line break at each end of a value belongs to the format.
    trims_lines: bool = False

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        ends = (mark for mark, _ in self.key_ends)
        value = (*ends, self.value, self.value_end)
        return tokens_in(*(self.block or ()), self.call, self.key, *value, self.call_end)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return XmlParser(self, tools)


class XmlParser(MarkMachine):
    """Parses calls anywhere in the answer. Strings are passed on while they arrive."""

    def __init__(self, tags: XmlFormat, tools: Tools) -> None:
        super().__init__()
        self._tags = tags
        self._tools = tools
        end = tags.value_end
        self._value_ends = ("\n" + end, end) if tags.trims_lines else (end,)

    def run(self) -> Steps[None]:
        """See Machine."""
        # Models forget the tag around calls.
        starts = (self._tags.call, *(self._tags.block or ())[:1])
        yield from self.read_text(first_chars(starts), lambda: self._calls(starts))

    def _calls(self, starts: tuple[str, ...]) -> Steps[None]:
        block, call = self._tags.block, self._tags.call
        mark = yield from self.one_of(starts)
        if mark != call:
            yield from self.skip_space()
            yield from self.expect(call)
        while True:
            self.in_tail = False
            yield from self._call()
            if block is None:
                return
            yield from self.skip_space()
            mark = yield from self.one_of((call, block[1]))
            if mark != call:
                return

    def _call(self) -> Steps[None]:
        tags = self._tags
        ends = (tags.key, tags.call_end) if tags.name_end is None else (tags.name_end,)
        name, mark = yield from self.name_until(ends)
        check_name(name)
        self.begin_call(name)
        self.arguments("{")
        separator = ""
        while True:
            if mark not in (tags.key, tags.call_end):
                yield from self.skip_space()
                mark = yield from self.one_of((tags.key, tags.call_end))
            if mark == tags.call_end:
                break
            yield from self._argument(name, separator)
            separator, mark = ", ", ""
        self.arguments("}")
        self.end_arguments()
        self.drop()

    def _argument(self, function: str, separator: str) -> Steps[None]:
        said = dict(self._tags.key_ends)
        key, mark = yield from self.name_until(tuple(said))
        if self._tags.value:
            yield from self.skip_space()
            yield from self.expect(self._tags.value)
        self.drop()
        self.arguments(f"{separator}{string(key)}: ")
        tool = self._tools.get(function)
        types = said[mark] or (types_of(tool.parameters, key) if tool else frozenset())
        if self._tags.trims_lines and self.char == "\n":
            yield from self.skip()
        yield from (self._string() if types == _STRING else self._other(types))

    def _string(self) -> Steps[None]:
        self.arguments('"')
        yield from self.until(self._value_ends, lambda text: self.arguments(inside_string(text)))
        self.arguments('"')

    def _other(self, types: frozenset[str]) -> Steps[None]:
        parts: list[str] = []
        try:
            yield from self.until(self._value_ends, parts.append)
        except MalformedError:
            # The answer was cut off: arguments hold what the model wrote.
            self.arguments("".join(parts))
            raise
        self.arguments(as_json("".join(parts), types))
