"""Hunyuan 3 and 4: a block of calls, whose tags may all end in the same suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.formats.tags.tagged import XmlFormat, XmlParser

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps


def _tags(suffix: str) -> XmlFormat:
    key, end = f"<arg_key{suffix}>", f"</tool_call{suffix}>"
    return XmlFormat(
        block=(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        call=f"<tool_call{suffix}>",
        name_ends=(f"<tool_sep{suffix}>", key, end),
        key=key,
        key_ends=((f"</arg_key{suffix}>", frozenset()),),
        value=f"<arg_value{suffix}>",
        value_end=f"</arg_value{suffix}>",
        call_end=end,
    )


#: By the tags that begin calls. The published checkpoints have no suffix or this one.
_SPELLINGS = {start: tags for tags in map(_tags, ("", ":opensource")) for start in tags.starts}


class HunyuanFormat(HeldToList):
    """See ToolFormat."""

    special_tokens = tuple(
        dict.fromkeys(token for tags in _SPELLINGS.values() for token in tags.special_tokens)
    )

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return HunyuanParser(_tags(""), tools)


class HunyuanParser(XmlParser):
    """Parses calls anywhere in the answer."""

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text("<", self._spelled)

    def _spelled(self) -> Steps[None]:
        mark = yield from self.one_of(tuple(_SPELLINGS))
        self.tags = _SPELLINGS[mark]
        yield from self.calls_behind(mark)
