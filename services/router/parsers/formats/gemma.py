"""Gemma: call:f{city:<escape>Rome<escape>,days:2}, values without JSON's quotes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.machine import MalformedError
from services.router.parsers.syntax.marks import MarkMachine, first_chars, tokens_in
from services.router.parsers.syntax.values import NO_STRING, as_json, inside_string, string

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

_CALL = "call:"
#: Bound on nested values: the parser recurses.
_MAX_DEPTH = 64
_BARE_ENDS = ",}]"


@dataclass(frozen=True, kw_only=True)
class GemmaFormat(HeldToList):
    """See ToolFormat."""

    begin: str
    end: str
    #: On both sides of a string.
    quote: str

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return tokens_in(self.begin, self.end, self.quote)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the marks say that it is a call
        return GemmaParser(self)


class GemmaParser(MarkMachine):
    """Parses calls anywhere in the answer."""

    def __init__(self, marks: GemmaFormat) -> None:
        super().__init__()
        self._marks = marks

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text(first_chars((self._marks.begin,)), self._call)

    def _call(self) -> Steps[None]:
        yield from self.expect(self._marks.begin)
        yield from self.skip_space()
        yield from self.expect(_CALL)
        name = yield from self.name()
        if self.char != "{":
            raise MalformedError
        self.begin_call(name)
        yield from self._object(_MAX_DEPTH)
        self.end_arguments()
        yield from self.skip_space()
        yield from self.expect(self._marks.end)

    def _object(self, depth: int) -> Steps[None]:
        yield from self._open("{", depth)
        separator = ""
        while self.char != "}":
            key = yield from self._key()
            self.arguments(f"{separator}{string(key)}: ")
            separator = ", "
            yield from self._value(depth)
            yield from self._next("}")
        yield from self.skip()
        self.arguments("}")

    def _list(self, depth: int) -> Steps[None]:
        yield from self._open("[", depth)
        separator = ""
        while self.char != "]":
            self.arguments(separator)
            separator = ", "
            yield from self._value(depth)
            yield from self._next("]")
        yield from self.skip()
        self.arguments("]")

    def _open(self, bracket: str, depth: int) -> Steps[None]:
        if not depth:
            raise MalformedError
        self.arguments(bracket)
        yield from self.skip()
        yield from self._gap()

    def _next(self, bracket: str) -> Steps[None]:
        yield from self._gap()
        if self.char == ",":
            yield from self.skip()
            yield from self._gap()
        elif self.char != bracket:
            raise MalformedError

    def _key(self) -> Steps[str]:
        quoted = self.char == self._marks.quote[0]
        if quoted:
            yield from self.expect(self._marks.quote)
            key, _ = yield from self.name_until((self._marks.quote,))
            yield from self._gap()
            yield from self.expect(":")
        else:
            key, _ = yield from self.name_until((":",))
        self.drop()
        yield from self._gap()
        return key

    def _value(self, depth: int) -> Steps[None]:
        if self.char == "{":
            yield from self._object(depth - 1)
        elif self.char == "[":
            yield from self._list(depth - 1)
        elif self.char == self._marks.quote[0]:
            yield from self._string()
        else:
            yield from self._bare()

    def _string(self) -> Steps[None]:
        yield from self.expect(self._marks.quote)
        self.drop()
        self.arguments('"')
        yield from self.until(
            (self._marks.quote,), lambda text: self.arguments(inside_string(text))
        )
        self.arguments('"')

    def _bare(self) -> Steps[None]:
        """Read a number or a word. A word that is none of JSON's or Python's is a string."""
        parts: list[str] = []
        while self.char not in _BARE_ENDS:
            parts.append(self.char)
            yield from self.skip()
        text = "".join(parts).strip()
        if not self.char:
            # The answer was cut off: arguments hold what the model wrote.
            self.arguments(text)
        if not text or not self.char:
            raise MalformedError
        self.arguments(as_json(text, NO_STRING))

    def _gap(self) -> Steps[None]:
        yield from self.skip_space()
        self.drop()
