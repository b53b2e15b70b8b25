"""Sampling values and end tokens in a checkpoint's generation_config.json."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shared.errors import ConfigError
from shared.text.model_files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling values recommended by the model's authors. None: no recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    @classmethod
    def load(cls, model_dir: Path) -> GenerationDefaults:
        """Read generation_config.json; without the file there are no recommendations.

        Raises:
            ConfigError: the file is not JSON, or a value has the wrong type.
        """
        path = model_dir / FILE
        return cls._of(read_json(path), path)

    @classmethod
    def choose(cls, model_dir: Path, source: str, overrides: str | None = None) -> Self:
        """Return the values of a source, with those of a JSON object in their place.

        `source`: `auto` is the model's file, `vllm` none, any other value a folder with one.

        Raises:
            ConfigError: there is no such folder, or a value is wrong or unknown.
        """
        content: dict[str, Any] = {}
        path = (model_dir if source == "auto" else Path(source)) / FILE
        if source != "vllm":
            if source != "auto" and not path.is_file():
                raise ConfigError(
                    f"generation_config must be auto, vllm or a folder with a {FILE}, "
                    f"not {source!r}"
                )
            content = read_json(path)
        chosen = cls._of(content, path)
        if overrides is None:
            return chosen
        values = _read_overrides(overrides)
        replaced = cls._of(values, _OVERRIDES)
        return dataclasses.replace(
            chosen, **{_FIELDS[key]: getattr(replaced, _FIELDS[key]) for key in values}
        )

    @classmethod
    def _of(cls, content: Mapping[str, Any], path: object) -> Self:
        return cls(
            temperature=_number(content, "temperature", path),
            top_k=_whole(content, "top_k", path),
            top_p=_number(content, "top_p", path),
            min_p=_number(content, "min_p", path),
            repetition_penalty=_number(content, "repetition_penalty", path),
            max_tokens=_whole(content, "max_new_tokens", path),
        )


_OVERRIDES = "--override-generation-config"
#: Fields by the names that the file has for them.
_FIELDS = {
    "max_new_tokens": "max_tokens",
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")},
}


def _read_overrides(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{_OVERRIDES} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{_OVERRIDES} must be a JSON object, not {text!r}")
    unknown = sorted(values.keys() - _FIELDS.keys())
    if unknown:
        raise ConfigError(f"{_OVERRIDES}: {unknown[0]} is none of {', '.join(sorted(_FIELDS))}")
    return values


def read_token_ids(content: Mapping[str, Any], key: str, path: Path) -> tuple[int, ...]:
    """Return the token ids of a key with one id, a list of ids, or nothing."""
    value = content.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        raise ConfigError(f"{key} in {path} must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def _number(content: Mapping[str, Any], key: str, path: object) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} in {path} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{key} in {path} is too large: {error}") from error


def _whole(content: Mapping[str, Any], key: str, path: object) -> int | None:
    value = _number(content, key, path)
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value):
        raise ConfigError(f"{key} in {path} must be a whole number, not {value!r}")
    return int(value)
