"""Mistral: [TOOL_CALLS] and a list of calls in JSON; later models write [TOOL_CALLS]name{…}.

Between name and arguments there may be [CALL_ID]… and [ARGS].
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING

from services.router.parsers.formats.json_list import HeldToList, JsonListParser
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.machine import MalformedError

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

TAG, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_CHARS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Return a new id of nine letters or digits: Mistral's chat templates refuse others."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))


class MistralParser(JsonMachine):
    """Parses calls anywhere in the answer."""

    def __init__(self) -> None:
        super().__init__(new_call_id)

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.read_text("[", self._calls)

    def _calls(self) -> Steps[None]:
        yield from self.expect(TAG)
        yield from self.skip_space()
        if self.char == "[":
            yield from self.call_list(self.call_object)
        else:
            yield from self._named_call()

    def _named_call(self) -> Steps[None]:
        name = yield from self.name()
        while self.char == "[":
            # Both begin with a bracket; the second letter tells them apart.
            yield from self.advance()
            if self.char == CALL_ID[1]:
                yield from self.expect(CALL_ID[1:])
                yield from self.name()
            else:
                yield from self.expect(ARGS[1:])
        yield from self.skip_space()
        if not name:
            raise MalformedError
        yield from self.streamed_object(name)


class MistralFormat(HeldToList):
    """See ToolFormat."""

    special_tokens = (TAG, CALL_ID, ARGS)

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        del tools  # the tag says that it is a call
        return MistralParser()

    def forced_parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return JsonListParser(tools, new_call_id)
