"""Hermes, Qwen 2.5 and Qwen 3: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

BEGIN, END = "<tool_call>", "</tool_call>"
#: Other families write other text than JSON between the same tags.
_OTHERS = ("<function=", "<arg_key>")


class HermesParser(JsonMachine):
    """Calls may stand anywhere in the answer. End tags may be missing."""

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text("<", self._call)

    def _call(self) -> Steps[None]:
        yield from self.expect(BEGIN)
        while True:
            yield from self.skip_space()
            yield from self.call_object()
            yield from self.skip_space()
            yield from self.expect("<")
            if self.char == "/":
                yield from self.expect(END[1:])
                return
            yield from self.expect(BEGIN[1:])


class HermesFormat(HeldToList):
    """See ToolFormat."""

    special_tokens = (BEGIN, END)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the tags say that it is a call
        return HermesParser()

    def is_format_of(self, template: str) -> bool:
        """See ToolFormat."""
        return BEGIN in template and not any(other in template for other in _OTHERS)
