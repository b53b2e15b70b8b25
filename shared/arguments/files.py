"""Command lines that are kept in a file of YAML, as `vllm serve --config FILE.yaml` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = frozenset({".yaml", ".yml"})


def words_of_file(path: Path) -> list[str]:
    """Return the words of a command line that say what the file says.

    A model (`model`, `model_tag`) stays a flag: `--model`.

    Raises:
        ConfigError: the file cannot be read, or is no mapping of flags.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path} must be a mapping with the names of flags as keys")
    return [word for key, value in content.items() for word in _words(key, value)]


def _words(key: str, value: Any) -> Iterator[str]:
    name = "model" if key == "model_tag" else key.replace("_", "-")
    if value is None:
        return
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    if isinstance(value, dict):
        yield json.dumps(value)
    elif isinstance(value, list):
        yield from map(str, value)
    else:
        yield str(value)


def has_suffix(word: str) -> bool:
    """Return whether a word names such a file."""
    return Path(word).suffix in SUFFIXES
