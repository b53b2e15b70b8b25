"""Muse Glimmer: messages to the model itself, to tools, and to the user.

For example " to=self<|message|>…<|eom|>", then <|start|>assistant to=f<|message|> and calls between
tags <atem:…>, or <|start|>assistant to=user<|message|>…<|eot|>. One parser reads all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.formats.json_list import HeldToList
from services.router.parsers.formats.tags.tagged import XmlFormat, XmlParser
from services.router.parsers.syntax.messages import MessageMachine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser, Tools
    from services.router.parsers.syntax.machine import Steps

START, MESSAGE, EOM, EOT = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
TOKENS = (START, MESSAGE, EOM, EOT)
#: The prompt ends with the beginning of the first header.
_FIRST_HEADERS = (START, MESSAGE, " to=", "to=")
#: Models forget the end of a message: the next one ends it as well.
_ENDS = (EOM, EOT, START)
_RECIPIENT = re.compile(r"\bto=([\w.\-]+)")
_SELF, _USER = "self", "user"
_CALLS = XmlFormat(
    block=("<atem:function_calls>", "</atem:function_calls>"),
    call='<atem:invoke name="',
    name_ends=('">',),
    key='<atem:parameter name="',
    key_ends=(('">', frozenset[str]()),),
    value_end="</atem:parameter>",
    call_end="</atem:invoke>",
)


class MuseGlimmerCalls(HeldToList):
    """See ToolFormat."""

    special_tokens = TOKENS
    reads_reasoning = True

    def parser(self, tools: Tools) -> TextParser:
        """See ToolFormat."""
        return MuseGlimmerParser(tools)


class MuseGlimmerReasoning:
    """See ReasoningFormat."""

    special_tokens = TOKENS

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        del prompt  # it ends within the first header
        return MuseGlimmerParser({})

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat. The first message may be reasoning."""
        del prompt
        return ReasoningMarks(begin=MESSAGE, end=EOM, is_open=False)


class MuseGlimmerParser(XmlParser, MessageMachine):
    """Parses messages. Text that is in none is content.

    Calls in messages to tools are calls if the request has tools, and otherwise content. Elsewhere
    they are text.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(_CALLS, tools)

    def run(self) -> Steps[None]:
        """See Machine."""
        yield from self.attempt(self._messages(_FIRST_HEADERS))
        yield from self.read_text(START[0], lambda: self._messages(_ENDS))

    def function(self, written: str) -> str:
        """See XmlParser. The template shows tools as f.*, and models write f.f."""
        name, _, rest = written.partition(".")
        return name if rest == name and written not in self.tools else written

    def _messages(self, begins: tuple[str, ...]) -> Steps[None]:
        mark = yield from self.one_of(begins)
        while mark not in (EOM, EOT):
            header = mark
            if mark != MESSAGE:
                # A header that the end of the answer cuts off is dropped.
                self.in_tail = True
                rest, _ = yield from self.name_until((MESSAGE,))
                header += rest
            mark = yield from self._message(_RECIPIENT.search(header))
        self.drop()

    def _message(self, recipient: re.Match[str] | None) -> Steps[str]:
        name = _USER if recipient is None else recipient[1]
        if name in (_SELF, _USER) or not self.tools:
            kind = ReasoningDelta if name == _SELF else ContentDelta
            mark = yield from self.spoken(kind, _ENDS)
            return mark
        self.drop()
        yield from self.skip_space()
        yield from self.calls()
        yield from self.skip_space()
        mark = yield from self.one_of(_ENDS)
        return mark
