"""Inkling: an answer is a row of blocks, each of which says what it holds.

For example <|content_thinking|>…<|end_message|>, then
<|message_model|>f<|content_invoke_tool_json|> {"name": "f", "args": {…}}<|end_message|>, or
<|message_model|><|content_text|>…<|end_message|>. One parser reads all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.json_call import JsonMachine
from services.router.parsers.syntax.messages import MessageMachine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

MODEL, THINKING, TEXT = "<|message_model|>", "<|content_thinking|>", "<|content_text|>"
INVOKE, INVOKE_TEXT = "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"
END, END_SAMPLING = "<|end_message|>", "<|content_model_end_sampling|>"
TOKENS = (MODEL, THINKING, TEXT, INVOKE, INVOKE_TEXT, END, END_SAMPLING)
_CONTENTS = (THINKING, TEXT, INVOKE, INVOKE_TEXT)
_ENDS = (END, END_SAMPLING)


class InklingCalls(HeldToList):
    """See ToolFormat."""

    special_tokens = TOKENS
    reads_reasoning = True

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return InklingParser(tools)


class InklingReasoning:
    """See ReasoningFormat."""

    special_tokens = TOKENS

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        del prompt  # it ends within the first header
        return InklingParser({})

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat. The first block may be reasoning."""
        del prompt
        return ReasoningMarks(begin=THINKING, end=END, is_open=False)


class InklingParser(JsonMachine, MessageMachine):
    """Parses blocks. Text that is in none is content.

    Calls are content if the request has no tools.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self._tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        # The prompt ends with the mark of a message, so a function's name may begin the answer.
        yield from self.attempt(self._headed())
        yield from self.read_text(MODEL[0], self._block)

    def _headed(self) -> Steps[None]:
        name = yield from self.name()
        if name:
            mark = yield from self.one_of(_CONTENTS)
            yield from self._content(mark)
        else:
            yield from self._block()

    def _block(self) -> Steps[None]:
        mark = yield from self.one_of((MODEL, *_CONTENTS, *_ENDS))
        if mark == MODEL:
            # A header that the end of the answer cuts off is dropped.
            self.in_tail = True
            yield from self.name()
            mark = yield from self.one_of((*_CONTENTS, *_ENDS))
        yield from self._content(mark)

    def _content(self, mark: str) -> Steps[None]:
        if mark in _ENDS:
            self.drop()
        elif mark == THINKING:
            yield from self.spoken(ReasoningDelta, _ENDS)
        elif mark == INVOKE and self._tools:
            yield from self.skip_space()
            yield from self.call_object(arguments=("args",))
            yield from self.skip_space()
            self.in_tail = True
            yield from self.one_of(_ENDS)
        else:
            yield from self.spoken(ContentDelta, _ENDS)
