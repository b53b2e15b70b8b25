"""A folder with links to a model's files, some of them those of another folder.

The reader of a model, its identity and its hashes then know of no changes. A folder's name is made
of what is in it, so other changes get another folder.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.made_folder import cache_dir, make_folder
from shared.text.model_files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = "config.json"
#: Change it with what is written.
_VERSION = 1
#: Files that belong to a tokenizer; a folder with another tokenizer has none of its own.
_TOKENIZER_FILES = (
    "added_tokens.json",
    "additional_chat_templates",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def changed_folder(
    folder: Path,
    *,
    overrides: Mapping[str, Any],
    config_from: Path | None = None,
    tokenizer_from: Path | None = None,
) -> Path:
    """Return a folder with the model of `folder`, and the rest as the arguments say.

    `overrides` are merged into config.json, which is that of the folder `config_from` if there is
    one. Without changes it is `folder` itself.

    Raises:
        ConfigError: a file is missing or cannot be read, or the folder cannot be written.
    """
    if not overrides and config_from is None and tokenizer_from is None:
        return folder
    links = _entries(folder)
    if tokenizer_from is not None:
        links = {k: path for k, path in links.items() if k not in _TOKENIZER_FILES}
        links |= _tokenizer_files(tokenizer_from)
    config = _merged(_read_config(config_from or folder), overrides)
    links.pop(CONFIG, None)
    made = cache_dir() / "changed" / _name(links, config)

    def write(new: Path) -> None:
        (new / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        for name, path in links.items():
            (new / name).symlink_to(path)

    make_folder(made, write)
    return made


def _entries(folder: Path) -> dict[str, Path]:
    try:
        return {path.name: folder.resolve() / path.name for path in sorted(folder.iterdir())}
    except OSError as error:
        raise ConfigError(f"cannot read the folder {folder}: {error}") from error


def _tokenizer_files(folder: Path) -> dict[str, Path]:
    found = {name: path for name, path in _entries(folder).items() if name in _TOKENIZER_FILES}
    if "tokenizer.json" not in found:
        raise ConfigError(f"--tokenizer: {folder} has no tokenizer.json")
    return found


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    if not config:
        raise ConfigError(f"{folder} has no {CONFIG}")
    return config


def _merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values. A config inside it (`text_config`) is merged, too."""
    merged = dict(config)
    for key, value in overrides.items():
        before = merged.get(key)
        is_config = key.endswith("_config") and key != "quantization_config"
        if is_config and isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged


def _name(links: Mapping[str, Path], config: Mapping[str, Any]) -> str:
    parts = (_VERSION, {name: str(path) for name, path in links.items()}, config)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
