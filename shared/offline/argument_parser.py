"""vLLM's parser of command lines for programs, and the engine's arguments in it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from shared.arguments.base import Kind
from shared.arguments.spelling import join_keys, read_flags
from shared.arguments.table import ARGUMENTS, SHORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A parser, or a group of one.
Container = TypeVar("Container", bound=argparse._ActionsContainer)
_OBJECTS = frozenset(each.name for each in ARGUMENTS.values() if each.kind is Kind.OBJECT)


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An `ArgumentParser` that takes `--max_num_seqs`, `-tp 2` and `--object.key value`, too."""

    def parse_known_args(  # type: ignore[override]  # the base has overloads for namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """See ArgumentParser.

        Raises:
            ConfigError: keys of an object contradict each other.
        """
        own = {name for action in self._actions for name in action.option_strings}
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(_usual(words, own), namespace)


def add_engine_arguments(parser: Container, ours: Iterable[str]) -> Container:
    """Add every argument of vLLM's and the flags `ours` to a parser or a group; return it.

    What a command line does not name is None in its result.
    """
    group: argparse._ActionsContainer = parser
    if isinstance(parser, argparse.ArgumentParser):
        group = parser.add_argument_group("engine", "docs/arguments.md says what each means")
    group.add_argument("--model", help="folder, GGUF file or name on the hub")
    for argument in ARGUMENTS.values():
        names = [argument.name, *([argument.short] if argument.short else [])]
        if argument.name == "--model":
            continue
        if argument.kind is Kind.SWITCH:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, default=None)
        elif argument.kind is Kind.LIST:
            group.add_argument(*names, nargs="+", default=None)
        else:
            group.add_argument(*names, default=None)
    for flag in sorted(ours):
        if flag not in ARGUMENTS and flag not in {"--model", "--config"}:
            group.add_argument(flag, default=None)
    return parser


def _usual(words: Sequence[str], own: set[str]) -> list[str]:
    """Return the words with flags in the form that `argparse` knows; those of `own` stay."""
    front, flags = read_flags(words, {k: v for k, v in SHORT.items() if k not in own})
    joined = join_keys(flags, _OBJECTS)
    return [*front, *(word for flag in joined for word in flag.written())]
