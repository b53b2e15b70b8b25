"""K2 Horizon: tags around names and values, with or without their types, or JSON between tags.

The chat template's `tool_call_format` says which of them the model is told to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.tags.tagged import XmlFormat, XmlParser
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.marks import tokens_in
from services.router.parsers.syntax.values import NO_STRING

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

_TYPE, _TYPE_END = "<ifm|arg_type>", "</ifm|arg_type>"
_TYPES = NO_STRING | {"string"}


@dataclass(frozen=True, kw_only=True)
class K2HorizonFormat(XmlFormat):
    """See ToolFormat."""

    block: tuple[str, str] | None = ("<ifm|tool_calls>", "</ifm|tool_calls>")
    call: str = "<ifm|tool_call>"
    name_ends: tuple[str, ...] = ("<ifm|arg_key>", "</ifm|tool_call>")
    key: str = "<ifm|arg_key>"
    key_ends: tuple[tuple[str, frozenset[str]], ...] = (("</ifm|arg_key>", frozenset()),)
    value: str = "<ifm|arg_value>"
    value_end: str = "</ifm|arg_value>"
    call_end: str = "</ifm|tool_call>"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        tags = (*(self.block or ()), self.call, self.call_end, self.key, self.value, self.value_end)
        return tokens_in(*tags, "</ifm|arg_key>", _TYPE, _TYPE_END)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return K2HorizonParser(self, tools)


class K2HorizonParser(XmlParser, JsonMachine):
    """Parses calls anywhere in the answer."""

    def call(self) -> Steps[None]:
        """See XmlParser."""
        yield from self.skip_space()
        if self.char != "{":
            yield from super().call()
            return
        yield from self.call_object()
        yield from self.skip_space()
        yield from self.expect(self.tags.call_end)
        self.drop()

    def begin_value(self) -> Steps[frozenset[str]]:
        """See XmlParser. A type may have more words in brackets: array[string]."""
        yield from self.skip_space()
        mark = yield from self.one_of((self.tags.value, _TYPE))
        if mark == self.tags.value:
            return frozenset()
        said, _ = yield from self.name_until((_TYPE_END,))
        yield from self.skip_space()
        yield from self.expect(self.tags.value)
        return _TYPES & {said.partition("[")[0].strip().lower()}
