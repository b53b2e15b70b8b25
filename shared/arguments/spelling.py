"""Names of flags as vLLM's parser takes them, in the form that ours has.

`--max_num_seqs 8`, `-tp 2`, `-O3`, `--speculative-config.method ngram`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(slots=True)
class Flag:
    """A flag and the words behind it. `key` is what follows the first dot of a dotted name."""

    name: str
    key: str = ""
    words: list[str] = field(default_factory=list)

    def written(self) -> list[str]:
        """Return the words of a command line."""
        name = f"{self.name}.{self.key}" if self.key else self.name
        return [name, *self.words]


def read_flags(argv: Sequence[str], short: Mapping[str, str]) -> tuple[list[str], list[Flag]]:
    """Return the words before the first flag, and the flags with the words behind them."""
    front: list[str] = []
    flags: list[Flag] = []
    for word in argv:
        flag = _flag(word, short)
        if flag is not None:
            flags.append(flag)
        elif flags:
            flags[-1].words.append(word)
        else:
            front.append(word)
    return front, flags


def join_keys(flags: Sequence[Flag], objects: frozenset[str]) -> Iterator[Flag]:
    """Yield the flags with all dotted keys of an object in one JSON word, at its last place.

    Raises:
        ConfigError: the object beside its keys is none, or two keys contradict each other.
    """
    parts: dict[str, dict[str, Any]] = {}
    for flag in flags:
        if flag.name in objects and flag.key:
            whole = parts.setdefault(flag.name, {})
            _insert(whole, flag)
        elif flag.name in objects and flag.name in {f.name for f in flags if f.key}:
            parts.setdefault(flag.name, {}).update(_whole(flag))
        else:
            yield flag
    for name, whole in parts.items():
        yield Flag(name, words=[json.dumps(whole)])


def _flag(word: str, short: Mapping[str, str]) -> Flag | None:
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        head, _, key = name.partition(".")
        head = "--" + head[2:].replace("_", "-")
        return Flag(head, key, [value] if equals else [])
    if not word.startswith("-"):
        return None
    name, equals, value = word.partition("=")
    head, _, key = name.partition(".")
    if head in short:
        return Flag(short[head], key, [value] if equals else [])
    # -O3
    if word[:2] in short and word[2:].isdigit():
        return Flag(short[word[:2]], words=[word[2:]])
    return None


def _insert(whole: dict[str, Any], flag: Flag) -> None:
    *parents, last = flag.key.split(".")
    for parent in parents:
        whole = whole.setdefault(parent, {})
        if not isinstance(whole, dict):
            raise ConfigError(f"{flag.name}.{flag.key}: {parent} has a value already")
    if last.endswith("+"):
        whole.setdefault(last[:-1], []).extend(_value(word) for word in flag.words)
    else:
        whole[last] = _value(flag.words[0]) if flag.words else True


def _whole(flag: Flag) -> dict[str, Any]:
    given = _value(flag.words[0]) if flag.words else None
    if not isinstance(given, dict):
        raise ConfigError(f"{flag.name} must be a JSON object, not {' '.join(flag.words)!r}")
    return given


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word
