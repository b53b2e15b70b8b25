"""The folders from which a server reads adapters: nothing outside of them is opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, InvalidRequestError
from shared.request.adapter_ref import MAX_NAME_CHARS, MAX_PATH_CHARS


@dataclass(frozen=True, slots=True)
class AdapterFolders:
    """Paths below `root`, and `extra` ones; with neither, no path."""

    root: Path | None = None
    extra: frozenset[Path] = frozenset()
    #: Whether any path is good: the caller is the program itself.
    takes_any: bool = False

    def find(self, path: str) -> Path:
        """Return the folder of a path; a relative one is below `root`.

        Raises:
            InvalidRequestError: it is outside, also by a symbolic link, or is no folder.
        """
        if not path or len(path) > MAX_PATH_CHARS or "\0" in path:
            raise InvalidRequestError("lora_path must be a folder", param="lora_path")
        given = Path(path)
        if not given.is_absolute() and not self.takes_any:
            if self.root is None:
                raise self._outside(path)
            given = self.root / given
        try:
            # Links are followed first: what counts is where the files are.
            folder = given.resolve(strict=True)
        except (OSError, RuntimeError):
            if not self._has(given.resolve()):
                raise self._outside(path) from None
            raise InvalidRequestError(f"there is no folder {path}", param="lora_path") from None
        if not self._has(folder):
            raise self._outside(path)
        if not folder.is_dir():
            raise InvalidRequestError(f"{path} is no folder", param="lora_path")
        return folder

    def _has(self, path: Path) -> bool:
        if self.takes_any or path in self.extra or path in map(_resolved, self.extra):
            return True
        return self.root is not None and path.is_relative_to(_resolved(self.root))

    def _outside(self, path: str) -> InvalidRequestError:
        where = "no --lora-dir is set" if self.root is None else "it is not below --lora-dir"
        return InvalidRequestError(f"{path} is not read: {where}", param="lora_path")


def _resolved(path: Path) -> Path:
    return path.resolve()


def parse_modules(modules: tuple[str, ...]) -> dict[str, str]:
    """Return the path of each name of `--lora-modules`: name=path, or vLLM's JSON objects.

    Raises:
        ConfigError: an entry is neither, or a name comes twice.
    """
    found: dict[str, str] = {}
    for entry in modules:
        name, path = _parse_module(entry)
        if not 0 < len(name) <= MAX_NAME_CHARS or not path:
            raise ConfigError(f"--lora-modules: {entry!r} has no name, or no path")
        if name in found:
            raise ConfigError(f"--lora-modules: {name!r} is named twice")
        found[name] = path
    return found


def _parse_module(entry: str) -> tuple[str, str]:
    if not entry.lstrip().startswith("{"):
        name, _, path = entry.partition("=")
        return name.strip(), path.strip()
    try:
        given: Any = json.loads(entry)
    except ValueError as error:
        raise ConfigError(f"--lora-modules: {entry!r} is not JSON: {error}") from None
    known = {"name", "path", "base_model_name"}
    if not isinstance(given, Mapping) or not {"name", "path"} <= set(given) <= known:
        raise ConfigError(f"--lora-modules: {entry!r} must have name and path, and no other keys")
    if not all(isinstance(value, str) for value in given.values() if value is not None):
        raise ConfigError(f"--lora-modules: {entry!r} must have texts")
    return given["name"], given["path"]
