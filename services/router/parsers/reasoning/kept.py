"""Reasoning that stays in the text: clients that send it back need it where the model wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.base import ReasoningMarks
from services.router.parsers.syntax.machine import Machine

if TYPE_CHECKING:
    from services.router.parsers.base import TextParser
    from services.router.parsers.syntax.machine import Steps

_BEGIN, _END = "<think>", "</think>"


class KeptThinkFormat:
    """See ReasoningFormat. The prompt opens the reasoning, and all of the answer is content."""

    special_tokens = (_BEGIN, _END)

    def parser(self, prompt: str) -> TextParser:
        """See ReasoningFormat."""
        del prompt  # it always opens the reasoning
        return KeptThinkParser()

    def marks(self, prompt: str) -> ReasoningMarks | None:
        """See ReasoningFormat."""
        del prompt
        return ReasoningMarks(begin=_BEGIN, end=_END, is_open=True)


class KeptThinkParser(Machine):
    """Puts the mark that the prompt has before the answer."""

    def run(self) -> Steps[None]:
        """See Machine."""
        self.holds_space = False
        self.text(_BEGIN)
        yield from self.read_text("")
