"""MiniCPM 5: <function name="f"><param name="city">Rome</param></function>.

A value that contains tags or & stands between <![CDATA[ and ]]>.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.tags.tagged import XmlFormat, XmlParser

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, kw_only=True)
class MiniCpm5Format(XmlFormat):
    """See ToolFormat."""

    call: str = '<function name="'
    name_ends: tuple[str, ...] = ('">',)
    key: str = '<param name="'
    key_ends: tuple[tuple[str, frozenset[str]], ...] = (('">', frozenset()),)
    value_end: str = "</param>"
    call_end: str = "</function>"

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return MiniCpm5Parser(self, tools)


class MiniCpm5Parser(XmlParser):
    """Parses calls anywhere in the answer."""

    def value(self, types: frozenset[str], ends: tuple[str, ...], begin: str = "") -> Steps[None]:
        """See XmlParser."""
        begin = yield from self.beginning_of(_CDATA)
        if begin == _CDATA:
            begin, ends = "", tuple(_CDATA_END + end for end in ends)
        yield from super().value(types, ends, begin)
