"""Finds stop strings in text that arrives in pieces; holds back possible beginnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Returns the text before a stop string.

    The match that is completed first counts; of several completed by the same character, the
    longest. So the result does not depend on the cuts of the text.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._max_held = max((len(stop) for stop in self._stops), default=1) - 1
        self._include_in_output = include_in_output
        self._held = ""
        #: The stop string that was found. No text is returned after it.
        self.matched: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Add text; return the part that cannot belong to a stop string.

        No match can end in text that was added unarmed (before `min_tokens`), but one can begin
        there.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        num_old = len(self._held)
        text = self._held + text
        if armed and (found := self._find(text, num_old)) is not None:
            self._held = ""
            start, self.matched = found
            return text[:start] + (self.matched if self._include_in_output else "")
        start = self._start_of_held(text)
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Return the held text at the end."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, num_old: int) -> tuple[int, str] | None:
        """Return start and string of the match that ends first, after the first `num_old`
        characters.
        """
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else best[1:]

    def _start_of_held(self, text: str) -> int:
        """Return the start of the longest end of `text` that begins a stop string."""
        for start in range(max(0, len(text) - self._max_held), len(text)):
            if text[start] in self._first_chars:
                tail = text[start:]
                if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                    return start
        return len(text)
