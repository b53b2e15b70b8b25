"""Commands that take vLLM's engine arguments: its names, its forms of values, lists with spaces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from cli.errors import EXIT_USAGE, CommandError
from shared.arguments.translate import translate
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FLAG = "--served-model-name"


class TakesArguments(TyperCommand):
    """Puts the words into ours before typer reads them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate vLLM's arguments, say which have no effect, and join served names."""
        return super().parse_args(ctx, join_names(translated(args)))


def translated(args: Sequence[str]) -> list[str]:
    """Return the words in our spelling; standard error names what has no effect.

    Raises:
        CommandError: an argument is refused.
    """
    try:
        translation = translate(args)
    except ConfigError as error:
        raise CommandError(
            str(error), advice="docs/arguments.md lists every argument", exit_code=EXIT_USAGE
        ) from error
    for note in translation.notes:
        sys.stderr.write(f"baton: {note}\n")
    return list(translation.words)


def join_names(args: Iterable[str]) -> list[str]:
    """Return the words with all names between the flag and the next one joined."""
    joined: list[str] = []
    has_name = False
    is_open = False
    for arg in args:
        if not is_open or arg.startswith("-"):
            joined.append(arg)
            is_open, has_name = arg == _FLAG, False
        elif has_name:
            joined[-1] += f",{arg}"
        else:
            joined.append(arg)
            has_name = True
    return joined
