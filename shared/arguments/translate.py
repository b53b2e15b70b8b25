"""A command line with vLLM's arguments, in words of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.arguments.base import Inert, Kind, Refused, Spelled
from shared.arguments.contradictions import find_surplus
from shared.arguments.files import has_suffix, words_of_file
from shared.arguments.spelling import join_keys, read_flags
from shared.arguments.table import ARGUMENTS, SHORT
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.arguments.base import Argument
    from shared.arguments.spelling import Flag

_OBJECTS = frozenset(each.name for each in ARGUMENTS.values() if each.kind is Kind.OBJECT)


@dataclass(frozen=True, slots=True)
class Translation:
    """The words of ours, and a sentence about each argument without an effect."""

    words: tuple[str, ...]
    notes: tuple[str, ...]


def translate(argv: Sequence[str]) -> Translation:
    """Return the command line in words of ours. Flags that vLLM does not have stay as they are.

    Raises:
        ConfigError: an argument is refused, or its value, or two contradict each other.
    """
    front, flags = read_flags(_with_files(argv), SHORT)
    notes: list[str] = []
    # Spelled objects are read as a whole. A spelled argument may itself set a key of an object
    # (`--spec-tokens`), so keys are joined again afterwards.
    given = list(join_keys(flags, _OBJECTS))
    surplus = find_surplus(given)
    spelled = [
        ours for flag in given for ours in _spelled(flag, front, is_left_out=flag.name in surplus)
    ]
    words: list[str] = []
    for flag in join_keys(spelled, _OBJECTS):
        argument = _find(flag.name)
        if argument is None or not isinstance(argument.meaning, Inert | Refused):
            words += flag.written()
            continue
        notes += _dropped(argument, flag)
        front += _behind(argument, flag)
    return Translation((*front, *words), tuple(notes))


def _with_files(argv: Sequence[str]) -> list[str]:
    """Return the words with those of a file in front of them, where they have less weight."""
    front: list[str] = []
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, _, file = word.partition("=")
        if name != "--config":
            words.append(word)
            continue
        file = file or next(rest, "")
        if has_suffix(file):
            front += words_of_file(Path(file))
        else:
            words += ["--config", *([file] if file else [])]
    return [*words[: _num_front(words)], *front, *words[_num_front(words) :]]


def _num_front(words: Sequence[str]) -> int:
    """Return the number of words before the first flag."""
    return next((n for n, word in enumerate(words) if word.startswith("-")), len(words))


def _find(name: str) -> Argument | None:
    """Return the argument of this name, or the one that `--no-NAME` turns off."""
    return ARGUMENTS.get(name) or ARGUMENTS.get(name.replace("--no-", "--", 1))


def _num_words(argument: Argument) -> int | None:
    return {Kind.SWITCH: 0, Kind.LIST: None}.get(argument.kind, 1)


def _behind(argument: Argument, flag: Flag) -> list[str]:
    """Return the words behind a flag that are not its own."""
    num = _num_words(argument)
    return [] if num is None else flag.words[num:]


def _value(argument: Argument, flag: Flag) -> str:
    """Return what a flag says; a switch says True, or False with `--no-`."""
    if argument.kind is Kind.SWITCH:
        return str(flag.name == argument.name)
    if not flag.words:
        raise ConfigError(f"{flag.name} needs a value")
    return " ".join(flag.words[: _num_words(argument)])


def _spelled(flag: Flag, front: list[str], *, is_left_out: bool) -> list[Flag]:
    """Return a flag in our spelling; words that do not belong to it go to `front`."""
    argument = _find(flag.name)
    if argument is None or flag.key:
        return [flag]
    if is_left_out:
        front += _behind(argument, flag)
        return []
    if not isinstance(argument.meaning, Spelled):
        return [flag]
    word = _value(argument, flag)
    front += _behind(argument, flag)
    if word in {"", "None"}:
        return []
    words = argument.meaning.write(word)
    return read_flags(words, {})[1]


def _dropped(argument: Argument, flag: Flag) -> list[str]:
    """Return what to say of a flag that is left out.

    Raises:
        ConfigError: it would change something.
    """
    meaning = argument.meaning
    word = _value(argument, flag)
    if isinstance(meaning, Refused):
        if flag.key or not argument.is_harmless(word):
            raise ConfigError(f"{_shown(argument, flag)} is refused: {meaning.reason}")
        return []
    assert isinstance(meaning, Inert)
    if word in {argument.default, "None"}:
        return []
    return [f"{flag.name} has no effect here: {meaning.reason}"]


def _shown(argument: Argument, flag: Flag) -> str:
    if flag.key:
        return f"{flag.name}.{flag.key}"
    return flag.name if argument.kind is Kind.SWITCH else f"{flag.name} {_value(argument, flag)}"
