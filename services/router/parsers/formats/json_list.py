"""[{"name": …, "parameters": {…}}, …]: the format of answers that must be calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.parsers.syntax.call_schema import list_of_calls
from services.router.parsers.syntax.call_tag import tag_of_calls
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.machine import new_call_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.parsers.base import TextParser, Tools, ToolSpec
    from services.router.parsers.syntax.machine import Steps


class JsonListParser(JsonMachine):
    """Parses a list at the beginning of the answer. A single call may have no brackets."""

    def __init__(self, tools: Tools, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(new_id)
        self._tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.skip_space()
        if self.char == "[":
            yield from self.attempt(self.call_list(self._call))
        elif self.char == "{":
            yield from self.attempt(self._call())
        else:
            self.give_back()
        yield from self.read_text("")

    def _call(self) -> Steps[None]:
        return self.call_object(self._tools.__contains__)


class HeldToList:
    """The part of a ToolFormat that most have in common: an answer that must be calls is a list."""

    reads_reasoning = False
    #: What the format calls a call's arguments.
    arguments: str = "arguments"

    def schema_for(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any]:
        """See ToolFormat."""
        return list_of_calls(tools, arguments=self.arguments, parallel=parallel)

    def tag_for(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any]:
        """See ToolFormat."""
        return tag_of_calls(tools, arguments=self.arguments, parallel=parallel)

    def tag_among_text(self, tools: Sequence[ToolSpec], *, parallel: bool) -> dict[str, Any] | None:
        """See ToolFormat."""
        return None

    def forced_parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return JsonListParser(tools)


class JsonListFormat(HeldToList):
    """For models without a format of their own. See ToolFormat."""

    special_tokens: tuple[str, ...] = ()
    arguments = "parameters"

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return JsonListParser(tools)
