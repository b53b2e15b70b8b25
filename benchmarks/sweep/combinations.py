"""The files of a sweep's parameters, and command lines with these parameters."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: The key that names a combination.
_NAME = "_benchmark_name"


@dataclass(frozen=True, slots=True)
class Combination:
    """Values of flags. `name` is part of the names of files."""

    name: str
    values: Mapping[str, Any]

    def applied_to(self, command: Sequence[str]) -> list[str]:
        """Return the command with these flags in place of its own."""
        flags = {_flag(key) for key in self.values}
        return [*_without(command, flags), *self._words()]

    def _words(self) -> list[str]:
        words: list[str] = []
        for key, value in self.values.items():
            flag = _flag(key)
            match value:
                case True:
                    words.append(flag)
                case False:
                    words.append(flag.replace("--", "--no-", 1))
                case list():
                    words += [flag, *map(str, value)]
                case dict():
                    words += [flag, json.dumps(value)]
                case None:
                    continue
                case _:
                    words += [flag, str(value)]
        return words


def read_combinations(path: Path | None, flag: str) -> list[Combination]:
    """Return the combinations of a JSON file: a list of objects, or an object of objects by name.
    Without a file there is one without values.

    Raises:
        ConfigError: the file cannot be read, or is something else; `flag` names it.
    """
    if path is None:
        return [Combination("", {})]
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error}") from error
    if isinstance(content, dict):
        content = [{_NAME: name, **_object(each, path, flag)} for name, each in content.items()]
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{flag}: {path} is neither a list of objects nor an object of objects")
    found = [_combination(_object(each, path, flag)) for each in content]
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{flag}: two combinations of {path} are called {twice!r}")
    return found


def _object(each: Any, path: Path, flag: str) -> dict[str, Any]:
    if not isinstance(each, dict):
        raise ConfigError(f"{flag}: {each!r} in {path} is no object")
    return each


def _combination(record: Mapping[str, Any]) -> Combination:
    values = {key: value for key, value in record.items() if key != _NAME}
    name = str(record.get(_NAME) or "-".join(f"{key}={value}" for key, value in values.items()))
    return Combination(re.sub(r"[^\w=.,-]+", "_", name), values)


def _flag(key: str) -> str:
    return "--" + key.lstrip("-").replace("_", "-")


def _without(command: Sequence[str], flags: set[str]) -> list[str]:
    """Return the command without these flags and the words behind them."""
    kept: list[str] = []
    is_dropped = False
    for word in command:
        if word.startswith("--"):
            name = _flag(word.partition("=")[0])
            is_dropped = bool(flags & {name, name.replace("--no-", "--", 1)})
        if not is_dropped:
            kept.append(word)
    return kept
