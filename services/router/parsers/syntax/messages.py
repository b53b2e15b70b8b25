"""Answers that are a row of messages: some are reasoning, some are for the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.events import ContentDelta, ReasoningDelta
from services.router.parsers.syntax.machine import new_call_id
from services.router.parsers.syntax.marks import MarkMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.parsers.syntax.machine import Steps


class MessageMachine(MarkMachine):
    """A machine that can read messages. A line break comes between two of a kind."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(new_id)
        self.holds_space = False
        self._seen: set[type[ContentDelta | ReasoningDelta]] = set()
        self._needs_break = False

    def spoken(self, kind: type[ContentDelta | ReasoningDelta], ends: Sequence[str]) -> Steps[str]:
        """Read the text of a message; return the mark that ends it.

        Raises:
            MalformedError: the answer ends before one.
        """
        self.speak(kind)
        self._needs_break = kind in self._seen

        def take(text: str) -> None:
            if text:
                self._seen.add(kind)
                self.text("\n" + text if self._needs_break else text)
                self._needs_break = False

        mark = yield from self.until(ends, take, keeps_rest=True)
        self.speak(ContentDelta)
        return mark
