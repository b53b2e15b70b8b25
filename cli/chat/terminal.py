"""The user's terminal: what is read from it, and answers as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from cli.chat.timings_view import timings_table, tokens_per_s

if TYPE_CHECKING:
    from baton_client import Piece, Stream


class Terminal:
    """Answers go to stdout; what surrounds them to `notes`, or stderr."""

    def __init__(self, notes: Console | None = None) -> None:
        self._out = Console()
        self.notes = notes or Console(stderr=True)

    def read(self) -> str | None:
        """Return a line of the user's, or None at the end of the input."""
        try:
            return self.notes.input("[bold green]›[/] ").strip()
        except (EOFError, KeyboardInterrupt):
            self.notes.print()
            return None

    def show(self, stream: Stream) -> tuple[str, Piece | None]:
        """Print an answer while it arrives; return its text and its last piece, which is None if
        the user stopped it.
        """
        text = ""
        last: Piece | None = None
        with stream:
            try:
                for last in stream:
                    text += last.text
                    self._out.print(
                        last.text, end="", markup=False, highlight=False, soft_wrap=True
                    )
            except KeyboardInterrupt:
                last = None
                self.notes.print("\n(stopped)", style="dim", end="")
        self._out.print()
        return text, last

    def show_table(self, last: Piece) -> None:
        """Print where an answer's time went, all stages."""
        if last.timings and last.usage:
            self.notes.print(timings_table(last.timings, last.usage))

    def show_line(self, last: Piece) -> None:
        """Print where an answer's time went, in a line."""
        if last.timings is None or last.usage is None:
            return
        speed = tokens_per_s(last.timings, last.usage)
        self.notes.print(
            f"first token {last.timings.first_token_ms:.0f} ms · {speed} · "
            f"{last.usage.cached_tokens} of {last.usage.prompt_tokens} prompt tokens cached",
            style="dim",
            highlight=False,
        )
