"""Kimi K3: channels that open and close, and calls whose arguments say their types.

<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="city" type="string"
<|sep|>Rome<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>. All arguments may also
stand in one json element.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.machine import MalformedError
from services.router.parsers.syntax.marks import first_chars, tokens_in
from services.router.parsers.syntax.values import NO_STRING, as_json, inside_string, string

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

TOOLS, _TOOLS_END = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"
THINK, THINK_END = "<|open|>think<|sep|>", "<|close|>think<|sep|>"
#: Marks around the text for the user and at the answer's end. They are no text.
SILENT = (
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
)
_CALL, _CALL_END = "<|open|>call ", "<|close|>call<|sep|>"
_ARGUMENT, _ARGUMENT_END = "<|open|>argument ", "<|close|>argument<|sep|>"
_JSON, _JSON_END = "<|open|>json", "<|close|>json<|sep|>"
_HEADER_END = "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_BEGINS = (TOOLS, *SILENT)


class KimiK3Format(HeldToList):
    """See ToolFormat."""

    special_tokens = tokens_in(TOOLS, _TOOLS_END, SILENT[-1])

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the marks say that it is a call
        return KimiK3Parser()


class KimiK3Parser(JsonMachine):
    """Parses calls anywhere in the answer. Strings are passed on while they arrive."""

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text(first_chars(_BEGINS), self._channel)

    def _channel(self) -> Steps[None]:
        mark = yield from self.one_of(_BEGINS)
        if mark in SILENT:
            self.drop()
            return
        mark = yield from self._next((_CALL,))
        while mark == _CALL:
            self.in_tail = False
            yield from self._call()
            mark = yield from self._next((_CALL, _TOOLS_END))

    def _next(self, marks: tuple[str, ...]) -> Steps[str]:
        yield from self.skip_space()
        mark = yield from self.one_of(marks)
        return mark

    def _call(self) -> Steps[None]:
        header = yield from self._attributes()
        name = header.get("tool", "")
        mark = yield from self._next((_ARGUMENT, _JSON, _CALL_END))
        if mark == _JSON:
            yield from self._attributes()
            yield from self.skip_space()
            yield from self.streamed_object(name)
            yield from self._next((_JSON_END,))
            yield from self._next((_CALL_END,))
        else:
            self.begin_call(name)
            self.arguments("{")
            separator = ""
            while mark == _ARGUMENT:
                yield from self._argument(separator)
                separator = ", "
                mark = yield from self._next((_ARGUMENT, _CALL_END))
            self.arguments("}")
            self.end_arguments()
        self.drop()

    def _argument(self, separator: str) -> Steps[None]:
        header = yield from self._attributes()
        self.drop()
        self.arguments(f"{separator}{string(header.get('key', ''))}: ")
        if header.get("type", "string") == "string":
            self.arguments('"')
            yield from self.until(
                (_ARGUMENT_END,), lambda text: self.arguments(inside_string(text))
            )
            self.arguments('"')
            return
        parts: list[str] = []
        try:
            yield from self.until((_ARGUMENT_END,), parts.append)
        except MalformedError:
            # The answer was cut off: arguments hold what the model wrote.
            self.arguments("".join(parts))
            raise
        self.arguments(as_json("".join(parts), NO_STRING))

    def _attributes(self) -> Steps[dict[str, str]]:
        text, _ = yield from self.name_until((_HEADER_END,))
        return {
            key: value.replace("&quot;", '"').replace("&amp;", "&")
            for key, value in _ATTRIBUTE.findall(text)
        }
