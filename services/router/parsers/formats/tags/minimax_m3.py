"""MiniMax M3: every tag has a prefix, and an argument's tag is its name.

]<]minimax[>[<invoke name="f">]<]minimax[>[<city>Rome]<]minimax[>[</city>]<]minimax[>[</invoke>.
Objects are nested elements, and lists are elements named item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.parsers.formats.tags.tagged import XmlFormat, XmlParser
from services.router.parsers.syntax.machine import MalformedError
from services.router.parsers.syntax.nested import element_json
from services.router.parsers.syntax.values import string

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps
    from services.router.parsers.syntax.nested import Element

_PREFIX = "]<]minimax[>["
_TAG = f"{_PREFIX}<"
_INVOKE_END = "/invoke"
_STRING = frozenset({"string"})
#: Bound on nested elements: the parser recurses.
_MAX_DEPTH = 64


@dataclass(frozen=True, kw_only=True)
class MinimaxM3Format(XmlFormat):
    """See ToolFormat."""

    block: tuple[str, str] | None = (f"{_TAG}tool_call>", f"{_TAG}/tool_call>")
    call: str = f'{_TAG}invoke name="'
    name_ends: tuple[str, ...] = ('">',)
    key: str = _TAG
    value_end: str = f"{_TAG}/"
    call_end: str = f"{_TAG}{_INVOKE_END}>"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return (_PREFIX, "<tool_call>", "</tool_call>")

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return MinimaxM3Parser(self, tools)


class MinimaxM3Parser(XmlParser):
    """Parses calls anywhere in the answer. Only strings are passed on while they arrive."""

    def members(self, function: str, mark: str) -> Steps[None]:
        """See XmlParser."""
        del mark  # a tag always ends the name
        separator = ""
        while True:
            yield from self.skip_space()
            yield from self.expect(_TAG)
            key, _ = yield from self.name_until((">",))
            self.drop()
            if key == _INVOKE_END:
                return
            self.arguments(f"{separator}{string(key)}: ")
            separator = ", "
            if self.types(function, key) == _STRING:
                yield from self.value(_STRING, (f"{_TAG}/{key}>",))
            else:
                yield from self._nested(function, key)

    def _nested(self, function: str, key: str) -> Steps[None]:
        raw: list[str] = []
        try:
            element = yield from self._element(key, raw, _MAX_DEPTH)
        except MalformedError:
            # The answer was cut off: arguments hold what the model wrote.
            self.arguments("".join(raw))
            raise
        tool = self.tools.get(function)
        root = tool.parameters if tool else {}
        properties = root.get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        self.arguments(element_json(element, schema, root))

    def _element(self, name: str, raw: list[str], depth: int) -> Steps[Element]:
        """Read an element behind its tag. All that is read is appended to `raw`."""
        texts: list[str] = []
        children: list[tuple[str, Element]] = []

        def take(text: str) -> None:
            texts.append(text)
            raw.append(text)

        while True:
            yield from self.until((_TAG,), take)
            tag, _ = yield from self.name_until((">",))
            self.drop()
            if tag == f"/{name}":
                return children or "".join(texts)
            raw.append(f"{_TAG}{tag}>")
            if tag.startswith("/") or not tag or not depth:
                raise MalformedError
            child = yield from self._element(tag, raw, depth - 1)
            raw.append(f"{_TAG}/{tag}>")
            children.append((tag, child))
