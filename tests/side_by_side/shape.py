"""The shape of JSON: the types at each path, whatever the values are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: By path: the types that were seen, in the order of the alphabet and divided by `|`.
Shape = dict[str, str]

#: Objects whose keys are data: tokens and their ids.
_MAPS = ("top_logprobs[]", "prompt_logprobs[]", "added_tokens_decoder", "vllm_env", "logit_bias")
_TYPES = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}


def shape_of(values: Iterable[Any]) -> Shape:
    """The types at each path in any of the values."""
    seen: dict[str, set[str]] = {}
    for value in values:
        for path, kind in _walk("", value):
            seen.setdefault(path, set()).add(kind)
    return {path: "|".join(sorted(kinds)) for path, kinds in sorted(seen.items())}


def _walk(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield path, "object"
        for key, inner in value.items():
            name = "*" if path.endswith(_MAPS) and _is_data(path, value) else key
            yield from _walk(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list):
        yield path, "array"
        for inner in value:
            yield from _walk(f"{path}[]", inner)
    else:
        yield path, _TYPES[type(value)]


def _is_data(path: str, value: dict[str, Any]) -> bool:
    """Chat's `top_logprobs` have objects of the usual kind."""
    return not path.endswith("top_logprobs[]") or "logprob" not in value
