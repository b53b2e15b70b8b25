"""What an engine argument of vLLM can mean here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Kind(StrEnum):
    """The words that follow an argument's name."""

    #: None; `--no-NAME` says the opposite.
    SWITCH = "switch"
    #: One.
    VALUE = "value"
    #: One or more.
    LIST = "list"
    #: One JSON object; `--NAME.key value` sets one of its keys.
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Same:
    """A setting of ours has this name and this meaning."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Spelled:
    """Settings of ours say the same: `write` returns their words for a value.

    `write` raises `ConfigError` for values that we refuse.
    """

    flags: str
    write: Callable[[str], list[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Inert:
    """Every value is accepted, since nothing depends on it here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Only values that change nothing are accepted; `reason` says why, and what to use instead."""

    reason: str
    harmless: tuple[str, ...] = ()


Meaning = Same | Spelled | Inert | Refused


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. `default` is vLLM's, as the command line would say it; None: none is given."""

    name: str
    kind: Kind
    default: str | None
    meaning: Meaning
    short: str = ""

    def is_harmless(self, value: str) -> bool:
        """Return whether a refused argument changes nothing with this value."""
        assert isinstance(self.meaning, Refused)
        # A switch without a default is off.
        default = "False" if self.kind is Kind.SWITCH and self.default is None else self.default
        accepted = {"", "None", *self.meaning.harmless, *([] if default is None else [default])}
        return any(same_value(value, each) for each in accepted)


def same_value(left: str, right: str) -> bool:
    """Return whether two words of a command line mean one value: `1.0` and `1`, `{}` and `{ }`."""
    return left.lower() == right.lower() or _parsed(left) == _parsed(right)


def _parsed(word: str) -> object:
    try:
        return json.loads(word)
    except ValueError:
        return word


def switch(
    name: str, meaning: Meaning, *, default: bool | None = False, short: str = ""
) -> Argument:
    """Return an argument without a value."""
    return Argument(name, Kind.SWITCH, None if default is None else str(default), meaning, short)


def value(name: str, default: str | None, meaning: Meaning, *, short: str = "") -> Argument:
    """Return an argument with one word."""
    return Argument(name, Kind.VALUE, default, meaning, short)


def words(name: str, default: str | None, meaning: Meaning, *, short: str = "") -> Argument:
    """Return an argument with several words."""
    return Argument(name, Kind.LIST, default, meaning, short)


def json_object(name: str, meaning: Meaning, *, short: str = "") -> Argument:
    """Return an argument with a JSON object, by default none."""
    return Argument(name, Kind.OBJECT, "{}", meaning, short)


def renamed(flag: str, note: str = "") -> Spelled:
    """Return the meaning of an argument that only has another name here."""
    return Spelled(flag, lambda word: [flag, *word.split()], note)
