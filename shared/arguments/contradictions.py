"""Arguments that contradict each other, which vLLM refuses, too: before anything is loaded.

What contradicts the model, or a setting's own range, is checked with the settings.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from shared.arguments.numbers import read_number
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.arguments.spelling import Flag

    #: The words behind each name.
    _Words = Mapping[str, Sequence[str]]

#: An argument, and the object that says the same with one of its keys.
_TWICE = (
    ("--spec-method", "--speculative-config", "method"),
    ("--spec-model", "--speculative-config", "model"),
    ("--spec-tokens", "--speculative-config", "num_speculative_tokens"),
    ("--attention-backend", "--attention-config", "backend"),
)
#: Two bounds of one setting here: the first may be lower, and counts.
_BOUNDS = (
    ("--max-num-active-seqs", "--max-num-seqs"),
    ("--max-num-scheduled-tokens", "--max-num-batched-tokens"),
)
_SIZES, _LARGEST = "--cudagraph-capture-sizes", "--max-cudagraph-capture-size"


def find_surplus(flags: Sequence[Flag]) -> frozenset[str]:
    """Return the names of flags that say less than another one.

    Raises:
        ConfigError: two contradict each other.
    """
    given = {flag.name: flag.words for flag in flags if flag.words and not flag.key}
    _refuse_twice(given)
    return frozenset((*_upper_bounds(given), *_largest_size(given)))


def _refuse_twice(given: _Words) -> None:
    for name, whole, key in _TWICE:
        has_both = name in given and _object(given.get(whole)).get(key) is not None
        if has_both and given[name][0] != "None":
            raise ConfigError(f"{name} and {whole} both say {key}: leave one of them out")


def _upper_bounds(given: _Words) -> Iterator[str]:
    """Yield the upper one where both bounds are given."""
    for lower, upper in _BOUNDS:
        low, high = _number(lower, given), _number(upper, given)
        if low is None or high is None:
            continue  # one says nothing, or its own reader names the mistake
        if low > high:
            raise ConfigError(f"{lower} ({low}) must be at most {upper} ({high})")
        yield upper


def _largest_size(given: _Words) -> Iterator[str]:
    """Yield the largest size where all sizes are given."""
    sizes = [int(word) for word in re.findall(r"\d+", " ".join(given.get(_SIZES, ())))]
    largest = _number(_LARGEST, given)
    if not sizes or largest is None:
        return
    if largest != max(sizes):
        raise ConfigError(
            f"{_LARGEST} ({largest}) must be the largest of {_SIZES} ({max(sizes)}), or left out"
        )
    yield _LARGEST


def _number(name: str, given: _Words) -> int | None:
    word = read_number(given[name][0], name) if name in given else ""
    return int(word) if word.isdecimal() else None


def _object(words: Sequence[str] | None) -> Mapping[str, Any]:
    try:
        found = json.loads(words[0]) if words else {}
    except ValueError:
        return {}  # the argument's own reader names the mistake
    return found if isinstance(found, dict) else {}
