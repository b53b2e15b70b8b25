"""Llama 3: {"name": …, "parameters": {…}}, several calls separated by semicolons.

The tag <|python_tag|> may precede the first call or each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine, any_name

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.json_call import IsKnown
    from services.router.parsers.syntax.machine import Steps

TAG = "<|python_tag|>"


class Llama3JsonParser(JsonMachine):
    """Parses calls.

    Without the tag, calls begin the answer and must name a function of the request: other JSON is
    text.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self._tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.skip_space()
        if self.char == "{":
            yield from self.attempt(self._calls(self._tools.__contains__))
        else:
            self.give_back()
        yield from self.read_text("<", self._tagged)

    def _tagged(self) -> Steps[None]:
        yield from self.expect(TAG)
        yield from self.skip_space()
        yield from self._calls(any_name)

    def _calls(self, is_known: IsKnown) -> Steps[None]:
        """Read calls until other text follows; that text is malformed and becomes text of the
        answer.
        """
        while True:
            yield from self.call_object(is_known)
            yield from self.skip_space()
            if self.char == ";":
                yield from self.advance()
                yield from self.skip_space()
            if self.char == "<":
                yield from self.expect(TAG)
                yield from self.skip_space()


class Llama3JsonFormat(HeldToList):
    """See ToolFormat."""

    special_tokens = (TAG,)
    arguments = "parameters"

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return Llama3JsonParser(tools)
