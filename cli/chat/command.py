"""`baton chat`: talk to a running cluster through the SDK."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from baton_client import Baton, BatonError, UnavailableError
from cli.chat.terminal import Terminal
from cli.errors import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from baton_client import ChatOptions, Message, Piece
    from cli.security.access import Secure

HELP = "Ctrl-C stops an answer, /reset forgets the conversation, Ctrl-D ends."


class Chat:
    """One conversation. The answer goes to stdout; what surrounds it to `notes`, or stderr."""

    def __init__(
        self,
        baton: Baton,
        options: ChatOptions,
        *,
        system: str | None = None,
        notes: Console | None = None,
    ) -> None:
        self._baton = baton
        self._options = options
        self._beginning: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._beginning)
        self._terminal = Terminal(notes)

    def ask_once(self, question: str) -> str | None:
        """One question, its answer, and the full table of timings.

        Returns the answer; None if the user stopped it.
        """
        last = self._answer(question)
        if last is None:
            return None
        self._terminal.show_table(last)
        return str(self._messages[-1]["content"])

    def converse(self) -> None:
        """Ask questions from the terminal until its input ends."""
        self._terminal.notes.print(HELP, style="dim")
        while (question := self._terminal.read()) is not None:
            if question == "/reset":
                self._messages = list(self._beginning)
                continue
            if not question:
                continue
            try:
                last = self._answer(question)
            except UnavailableError:
                raise
            except BatonError as error:
                self._terminal.notes.print(
                    f"[red]{type(error).__name__}[/]: {error}", highlight=False
                )
                self._messages.pop()
                continue
            if last is not None:
                self._terminal.show_line(last)

    def _answer(self, question: str) -> Piece | None:
        """Stream the answer; return the last piece, or None if the user stopped it."""
        self._messages.append({"role": "user", "content": question})
        stream = self._baton.stream_chat(self._messages, **self._options)
        text, last = self._terminal.show(stream)
        self._messages.append({"role": "assistant", "content": text})
        return last


def run_chat(
    address: str,
    questions: Sequence[str],
    options: ChatOptions,
    *,
    system: str | None,
    secure: Secure | None = None,
) -> None:
    """Ask `questions` one after the other, or the user's input if there are none.

    Raises:
        CommandError: the cluster cannot be reached, or refused.
    """
    with reaching(address, secure) as baton:
        chat = Chat(baton, options, system=system)
        for question in questions:
            chat.ask_once(question)
        if not questions:
            chat.converse()


@contextmanager
def reaching(address: str, secure: Secure | None = None) -> Iterator[Baton]:
    """The SDK. Its errors leave the block as CommandErrors."""
    credentials = None if secure is None else secure.credentials()
    try:
        baton = Baton(address, credentials=credentials)
    except BatonError as error:
        reason = str(error).removeprefix("address: ")
        raise CommandError(f"--address {address}: {reason}", exit_code=EXIT_USAGE) from error
    with baton:
        try:
            yield baton
        except UnavailableError as error:
            raise CommandError(
                f"no answer from {address}: {error}",
                advice="start a cluster with `baton up`, or name another one with --address",
            ) from error
        except BatonError as error:
            raise CommandError(f"{type(error).__name__}: {error}") from error
