"""Commands that take several names after --served-model-name, as vLLM does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Iterable

_FLAG = "--served-model-name"


class TakesNames(TyperCommand):
    """Reads `--served-model-name a b` as `--served-model-name a,b`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the names before the options are read."""
        return super().parse_args(ctx, join_names(args))


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
