"""Conversion of a checkpoint's config.json to the description of its decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.gguf.source import refusal_of
from shared.model.checkpoint.files.json_file import read_json
from shared.model.checkpoint.formats.registry import find_format, with_own_file
from shared.model.checkpoint.headless import as_decoder, has_head, without_missing_head
from shared.model.checkpoint.wrapper import is_wrapped, unwrap
from shared.model.families.registry import ARCHITECTURES, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.spec.decoder import DecoderSpec

_ARCHITECTURES = "architectures"
#: What wrong values make readers of families raise, and values that many keys may have.
_WRONG = (ArithmeticError, AttributeError, TypeError, ValueError)
_OTHERS = (None, 1, 2, 64)


def load_spec(model_dir: Path) -> DecoderSpec:
    """Read `config.json`, as written by transformers 5 or found on the hub.

    Raises:
        ModelLoadError: missing or broken file, unsupported architecture, or a bad or missing key.
    """
    raw = with_own_file(read_config(model_dir), model_dir)
    raw = without_missing_head(raw, model_dir)
    try:
        return parse_spec(raw)
    except ModelLoadError as error:
        raise ModelLoadError(refusal_of(model_dir / "config.json", str(error))) from error


def read_config(model_dir: Path) -> Any:
    """Return the parsed `config.json`.

    Raises:
        ModelLoadError: missing or broken file.
    """
    return read_json(model_dir / "config.json")


#: Model types that transformers computes by a family's module, and whose tensors have other names.
_OTHER_NAMES = ("exaone", "sarvam_moe")


def has_family(raw: Any) -> bool:
    """Return whether the parsed file names a family of Baton, or no architecture at all."""
    if isinstance(raw, dict) and is_wrapped(unwrap(raw)):
        return True
    if isinstance(raw, dict) and not has_head(as_decoder(raw)):
        return True
    if isinstance(raw, dict) and raw.get("model_type") in _OTHER_NAMES:
        return False
    names = raw.get("architectures") if isinstance(raw, dict) else None
    if not isinstance(names, list) or not names:
        return True  # what is wrong with it, the next reader says
    return any(isinstance(name, str) and name in FAMILIES for name in names)


def parse_spec(raw: Any) -> DecoderSpec:
    """Return the description of a decoder from the parsed file.

    Raises:
        ModelLoadError: unsupported architecture, or a bad or missing key.
    """
    if not isinstance(raw, dict):
        raise ModelLoadError(f"the file holds a {type(raw).__name__}, not an object")
    try:
        return _described(raw)
    except KeyError as error:
        raise ModelLoadError(f"key {error} is missing") from error
    except _WRONG as error:
        named = ", ".join(_wrong_keys(raw, error))
        raise ModelLoadError(f"a value is wrong{named and f', of {named}'}: {error}") from error


def _described(raw: Mapping[str, Any]) -> DecoderSpec:
    raw = as_decoder(unwrap(raw))
    family = FAMILIES[_architecture(raw)]
    stored = find_format(raw)
    spec = family.describe(raw)
    return replace(
        spec,
        rounds_inputs=stored is not None and stored.rounds_inputs,
        has_head=has_head(raw),
    )


def _wrong_keys(raw: Mapping[str, Any], error: Exception) -> list[str]:
    """Return the keys that an error is about.

    They are found by trying, so that no family has to say it: with any other value there would be
    another error, or none.
    """

    def is_same(key: str, value: object) -> bool:
        try:
            _described({**raw, key: value})
        except (*_WRONG, KeyError, ModelLoadError) as other:
            return str(other) == str(error)
        return False

    return [
        key
        for key in raw
        if key != _ARCHITECTURES
        and not any(is_same(key, other) for other in _OTHERS if other != raw[key])
    ]


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get(_ARCHITECTURES) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelLoadError(f"{_ARCHITECTURES} must be a list of names, not {names!r}")
    for name in names:
        if name in FAMILIES:
            return str(name)
    shown = ", ".join(names) or "missing"
    raise ModelLoadError(
        f"architecture {shown} is not supported; families: {', '.join(sorted(ARCHITECTURES))}"
    )
