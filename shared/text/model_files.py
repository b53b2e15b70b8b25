"""Reads the small JSON and text files of a checkpoint. Errors name the file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the content of `path`, or None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in `path`; empty if there is no such file."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content
