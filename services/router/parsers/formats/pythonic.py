"""Calls in Python's syntax: [f(a=1), g(b="x")]. Parsed, never evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.machine import Machine, MalformedError
from services.router.parsers.syntax.python_values import keyword_arguments

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps


@dataclass(frozen=True, kw_only=True)
class PythonicFormat(HeldToList):
    """See ToolFormat."""

    begin: str
    end: str
    #: Whether a list of calls may begin the answer without a tag. Such calls must name a function
    #: of the request: other lists are text.
    bare: bool
    arguments: str = "arguments"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return (self.begin, self.end)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return PythonicParser(self, tools)


class PythonicParser(Machine):
    """Parses lists, or one call after another between tags; emits complete calls."""

    def __init__(self, tags: PythonicFormat, tools: Tools) -> None:
        super().__init__()
        self._tags = tags
        self._tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.skip_space()
        if self.char == "[" and self._tags.bare:
            yield from self.attempt(self._list(self._tools))
        else:
            self.give_back()
        yield from self.read_text(self._tags.begin[0], self._tagged)

    def _tagged(self) -> Steps[None]:
        yield from self.expect(self._tags.begin)
        yield from self.skip_space()
        if self.char == "[":
            yield from self._list(None)
            yield from self.skip_space()
        else:
            yield from self._call(None)
            yield from self.skip_space()
            while self.char != self._tags.end[0]:
                yield from self._call(None)
                yield from self.skip_space()
        yield from self.expect(self._tags.end)

    def _list(self, known: Tools | None) -> Steps[None]:
        yield from self.expect("[")
        yield from self.skip_space()
        while True:
            yield from self._call(known)
            yield from self.skip_space()
            if self.char == ",":
                yield from self.advance()
                yield from self.skip_space()
            elif self.char != "]":
                raise MalformedError
            if self.char == "]":
                break
        yield from self.advance()

    def _call(self, known: Tools | None) -> Steps[None]:
        name = yield from self.name()
        if not name or (known is not None and name not in known):
            raise MalformedError
        if self.char != "(":
            raise MalformedError
        self.in_tail = False
        source = yield from self._parenthesis()
        self.whole_call(name, keyword_arguments(source))

    def _parenthesis(self) -> Steps[str]:
        """Read (…) to its end; check only brackets and quotes. The content is checked later."""
        parts: list[str] = []
        depth = 0
        quote = ""
        is_escaped = False
        while self.char:
            char = self.char
            parts.append(char)
            if quote:
                if char == quote and not is_escaped:
                    quote = ""
                is_escaped = char == "\\" and not is_escaped
            elif char in "\"'":
                quote = char
            else:
                depth += (char in "([{") - (char in ")]}")
            yield from self.advance()
            if depth == 0:
                return "".join(parts)
        raise MalformedError
