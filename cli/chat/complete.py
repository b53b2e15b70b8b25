"""`baton complete`: continue prompts on a running cluster through the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.chat.command import reaching
from cli.chat.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton_client import Options
    from cli.security.access import Secure

HELP = "Enter a prompt. Ctrl-C stops an answer, Ctrl-D ends."


def run_complete(
    address: str, prompts: Sequence[str], options: Options, *, secure: Secure | None = None
) -> None:
    """Continue `prompts` one after the other, or the user's input if there are none.

    Raises:
        CommandError: the cluster cannot be reached, or refused.
    """
    terminal = Terminal()
    with reaching(address, secure) as baton:
        for prompt in prompts or _lines(terminal):
            _, last = terminal.show(baton.stream_generate(prompt, **options))
            if last is not None:
                terminal.show_line(last)


def _lines(terminal: Terminal) -> Iterator[str]:
    terminal.notes.print(HELP, style="dim")
    while (line := terminal.read()) is not None:
        if line:
            yield line
