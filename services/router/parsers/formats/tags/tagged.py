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
    #: Each of them ends the function's name. The next tag may be one of them.
    name_ends: tuple[str, ...] = (">",)
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
    def starts(self) -> tuple[str, ...]:
        """The tags that may begin calls: models forget the one around them."""
        return (self.call, *(self.block or ())[:1])

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        ends = (mark for mark, _ in self.key_ends)
        value = (*ends, self.value, self.value_end)
        return tokens_in(
            *(self.block or ()), self.call, *self.name_ends, self.key, *value, self.call_end
        )

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return XmlParser(self, tools)


class XmlParser(MarkMachine):
    """Parses calls anywhere in the answer. Strings are passed on while they arrive."""

    def __init__(self, tags: XmlFormat, tools: Tools) -> None:
        super().__init__()
        self.tags = tags
        self.tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text(first_chars(self.tags.starts), self.calls)

    def calls(self) -> Steps[None]:
        """Read the calls of a block, or one call without it.

        Raises:
            MalformedError: other text follows.
        """
        mark = yield from self.one_of(self.tags.starts)
        yield from self.calls_behind(mark)

    def calls_behind(self, mark: str) -> Steps[None]:
        """Read the calls behind the tag that begins them.

        Raises:
            MalformedError: other text follows.
        """
        block, call = self.tags.block, self.tags.call
        if mark != call:
            yield from self.skip_space()
            yield from self.expect(call)
        while True:
            self.in_tail = False
            yield from self.call()
            if block is None:
                return
            yield from self.skip_space()
            mark = yield from self.one_of((call, block[1]))
            if mark != call:
                return

    def call(self) -> Steps[None]:
        """Read a call behind its tag.

        Raises:
            MalformedError: it is none, or breaks off.
        """
        name, mark = yield from self.name_until(self.tags.name_ends)
        check_name(name)
        name = self.function(name)
        self.begin_call(name)
        self.arguments("{")
        yield from self.members(name, mark)
        self.arguments("}")
        self.end_arguments()
        self.drop()

    def function(self, written: str) -> str:
        """Return the name of the function that a model calls by this name."""
        return written

    def members(self, function: str, mark: str) -> Steps[None]:
        """Read arguments up to the end of the call. `mark`: the one behind the name.

        Raises:
            MalformedError: other text follows, or the call breaks off.
        """
        tags = self.tags
        separator = ""
        while True:
            if mark not in (tags.key, tags.call_end):
                yield from self.skip_space()
                mark = yield from self.one_of((tags.key, tags.call_end))
            if mark == tags.call_end:
                return
            yield from self._argument(function, separator)
            separator, mark = ", ", ""

    def begin_value(self) -> Steps[frozenset[str]]:
        """Read the text before a value; return the types that it says the value has.

        Raises:
            MalformedError: other text follows.
        """
        if self.tags.value:
            yield from self.skip_space()
            yield from self.expect(self.tags.value)
        return frozenset()

    def value(self, types: frozenset[str], ends: tuple[str, ...], begin: str = "") -> Steps[None]:
        """Read a value up to one of `ends`, and pass it on as JSON. `begin` has been read.

        Raises:
            MalformedError: it breaks off.
        """
        yield from (
            self._text(ends, begin) if types == _STRING else self._typed(types, ends, begin)
        )

    def types(self, function: str, key: str) -> frozenset[str]:
        """Return the types of an argument; empty if no schema says them."""
        tool = self.tools.get(function)
        return types_of(tool.parameters, key) if tool else frozenset()

    def _argument(self, function: str, separator: str) -> Steps[None]:
        tags = self.tags
        said = dict(tags.key_ends)
        key, mark = yield from self.name_until(tuple(said))
        types = yield from self.begin_value()
        self.drop()
        self.arguments(f"{separator}{string(key)}: ")
        if tags.trims_lines and self.char == "\n":
            yield from self.skip()
        ends = ("\n" + tags.value_end, tags.value_end) if tags.trims_lines else (tags.value_end,)
        yield from self.value(types or said[mark] or self.types(function, key), ends)

    def _text(self, ends: tuple[str, ...], begin: str) -> Steps[None]:
        self.arguments('"')
        yield from self.until(ends, lambda text: self.arguments(inside_string(text)), begin=begin)
        self.arguments('"')

    def _typed(self, types: frozenset[str], ends: tuple[str, ...], begin: str) -> Steps[None]:
        parts: list[str] = []
        try:
            yield from self.until(ends, parts.append, begin=begin)
        except MalformedError:
            # The answer was cut off: arguments hold what the model wrote.
            self.arguments("".join(parts))
            raise
        self.arguments(as_json("".join(parts), types))
