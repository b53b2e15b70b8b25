"""The folder that a run writes: beside its destination until it is complete, so a run can go on.

A manifest lists the files that are complete, and what they were made of and how.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from shared.errors import ConfigError
from shared.model.checkpoint.files.checkpoint_files import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

MANIFEST, _LOCK = ".manifest.json", ".lock"
_CONFIG = "config.json"
#: Files of weights, which are not copied.
_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".index.json",
)
#: Files that say what is true of the source only.
_ABOUT_SOURCE = (_CONFIG, "README.md")
#: What is left free on the disk besides the files.
_SPARE_BYTES = 16 << 20


class OutputFolder:
    """The files of one run. Use `open_folder`."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self._out = out
        self._settings = dict(settings)
        self._files: dict[str, dict[str, Any]] = {}
        self.path = partial_path(out)

    @property
    def num_bytes(self) -> int:
        """Size of the complete files."""
        return sum(own["bytes"] for own in self._files.values())

    def has(self, file: str) -> bool:
        """Return whether a file is complete."""
        return file in self._files

    def write(self, file: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a file; with it in the manifest, it is complete.

        Raises:
            ConfigError: the disk is full, or fails.
        """
        path = self.path / file
        with _saying(self.path):
            part = path.with_suffix(".part")
            save_file(dict(tensors), part, metadata={"format": "pt"})
            shutil.copymode(self.path / MANIFEST, part)  # the library lets the owner alone read
            _sync(part)
            part.replace(path)
            own = {"bytes": path.stat().st_size, "tensors": sorted(tensors)}
            self._files[file] = own
            self._save()

    def finish(self, source: Path, config: Mapping[str, Any]) -> None:
        """Add config, index and the source's small files; then move the folder to its place.

        Raises:
            ConfigError: the disk is full, or fails.
        """
        with _saying(self.path):
            for each in sorted(source.iterdir()):
                if each.is_file() and _is_copied(each.name):
                    shutil.copyfile(each, self.path / each.name)
            weight_map = {
                name: file for file, own in self._files.items() for name in own["tensors"]
            }
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": weight_map}
            for name, content in ((INDEX_NAME, index), (_CONFIG, config)):
                _write_json(self.path / name, content)
            _sync(self.path)
            self.path.rename(self._out)
            for name in (MANIFEST, _LOCK):
                (self._out / name).unlink()

    def resume(self) -> None:
        """Take over what an interrupted run has completed.

        Raises:
            ConfigError: it was another run.
        """
        manifest = self.path / MANIFEST
        if not manifest.exists():
            self._save()
            return
        try:
            own = json.loads(manifest.read_text(encoding="utf-8"))
            settings, files = own["settings"], own["files"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{manifest} is damaged: remove {self.path}") from error
        if settings != json.loads(json.dumps(self._settings)):
            raise ConfigError(
                f"{self.path} is of an interrupted run with other settings, or of another "
                "checkpoint: give the same, or remove it"
            )
        for file, known in files.items():
            path = self.path / file
            if path.is_file() and path.stat().st_size == known["bytes"]:
                self._files[file] = known

    def _save(self) -> None:
        _write_json(self.path / MANIFEST, {"settings": self._settings, "files": self._files})


def _is_copied(name: str) -> bool:
    return not name.endswith(_WEIGHTS) and name not in _ABOUT_SOURCE and not name.startswith(".")


def partial_path(out: Path) -> Path:
    """Return where a folder is until it is complete."""
    return out.with_name(f".{out.name}.quantizing")


@contextmanager
def open_folder(out: Path, settings: Mapping[str, Any], num_bytes: int) -> Iterator[OutputFolder]:
    """Make the folder of a run, or go on with that of an interrupted one.

    settings: all that decides what is written; num_bytes: about the size of all files.

    Raises:
        ConfigError: `out` exists, the disk has too little space, another run is writing, or an
            interrupted one had other settings.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists: remove it, or name another folder")
    folder = OutputFolder(out, settings)
    with _saying(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = (folder.path / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another run is writing {folder.path}") from error
        with _saying(folder.path):
            folder.resume()
        _check_space(folder, num_bytes)
        yield folder


def _check_space(folder: OutputFolder, num_bytes: int) -> None:
    """Raise ConfigError if the disk has too little space; nothing is left of a run that is new."""
    needed = num_bytes - folder.num_bytes + _SPARE_BYTES
    free = shutil.disk_usage(folder.path).free
    if free < needed:
        if not folder.num_bytes:
            shutil.rmtree(folder.path)
        raise ConfigError(
            f"{folder.path.parent} has {free / 2**20:.0f} MiB free, about {needed / 2**20:.0f} MiB "
            "are needed"
        )


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"cannot write {path}: {error}; the same command goes on behind what is complete"
        ) from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file as a whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _sync(part)
    part.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stamps(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Return sizes and times of change of files, by name: others are another checkpoint."""
    found = {path.name: path.stat() for path in paths}
    return {name: [own.st_size, own.st_mtime_ns] for name, own in found.items()}
