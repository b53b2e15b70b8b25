"""Harmony, the format of gpt-oss: an answer is a row of messages with headers.

For example <|channel|>analysis<|message|>…<|end|>, then <|start|>assistant<|channel|>commentary
to=functions.f <|constrain|>json<|message|>{…}<|call|>, or <|channel|>final<|message|>…<|return|>.
Reasoning and calls alternate, so one parser reads both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.syntax.messages import MessageMachine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
TOKENS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
#: Namespace of the request's functions.
FUNCTIONS = "functions."
_HEADERS = (START, CHANNEL)
#: The prompt ends with the beginning of the first header.
_FIRST_HEADERS = (*_HEADERS, " to=")
_ENDS = (END, CALL, RETURN)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyCalls(HeldToList):
    """See ToolFormat."""

    special_tokens = TOKENS
    reads_reasoning = True

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return HarmonyParser(tools)


class HarmonyReasoning:
    """See ReasoningFormat."""

    special_tokens = TOKENS

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        del prompt  # it ends before the first header
        return HarmonyParser({})

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat. The first message may be reasoning."""
        del prompt
        return ReasoningMarks(begin=CHANNEL, end=END, is_open=False)


class HarmonyParser(MessageMachine):
    """Parses messages. Text that is in none is content.

    Messages to functions are calls if the request has tools, and otherwise content. Messages to
    the model's own tools are reasoning.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self._tools = tools

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.attempt(self._message(_FIRST_HEADERS))
        yield from self.read_text(START[0], lambda: self._message(_HEADERS))

    def _message(self, begins: tuple[str, ...]) -> Steps[None]:
        begin = yield from self.one_of(begins)
        # A header that the end of the answer cuts off is dropped.
        self.in_tail = True
        rest, _ = yield from self.name_until((MESSAGE,))
        header = begin + rest
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        is_reasoning = channel is not None and channel[1] == "analysis"
        if recipient is None:
            yield from self.spoken(ReasoningDelta if is_reasoning else ContentDelta, _ENDS)
            return
        function = recipient[1].removeprefix(FUNCTIONS)
        if function == recipient[1] and function not in self._tools:
            yield from self.spoken(ReasoningDelta, _ENDS)
        elif self._tools:
            yield from self._call(function)
        else:
            yield from self.spoken(ContentDelta, _ENDS)

    def _call(self, function: str) -> Steps[None]:
        self.begin_call(function)
        yield from self.until(_ENDS, self.arguments)
        self.end_arguments()
