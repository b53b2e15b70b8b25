"""Keeps what the compile gate found, for as long as nothing that it depends on changes.

One file per state of the kernels, in `compile-gate` under the cache of the native kernels. Only
cases that passed are kept: one that failed is compiled again.
"""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.native.build import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def fingerprint(folder: Path, *versions: str) -> str:
    """Of every Python source below `folder`, and of these versions."""
    digest = hashlib.sha256("\0".join(versions).encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(b"\0" + path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class GateCache:
    """The lines of cases that passed, by architecture and name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_this_tree(cls) -> GateCache:
        """For the kernels as they are now, and the compiler that is installed."""
        key = fingerprint(Path(__file__).parent, version("triton"), platform.machine())
        return cls(cache_dir() / "compile-gate" / f"{key}.txt")

    def read(self) -> dict[tuple[int, str], str]:
        """What was found; nothing if the file is not there or cannot be read."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        found = {}
        for line in lines:
            arch, _, rest = line.partition("\t")
            name, _, text = rest.partition("\t")
            if arch.isdigit() and text:
                found[int(arch), name] = text
        return found

    def write(self, found: Mapping[tuple[int, str], str]) -> None:
        """Keep these, and forget other states of the kernels; does nothing where it cannot."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")
            new.write_text(
                "".join(f"{arch}\t{name}\t{text}\n" for (arch, name), text in found.items()),
                encoding="utf-8",
            )
            new.replace(self._path)
            _forget(other for other in self._path.parent.glob("*.txt") if other != self._path)
        except OSError:
            return


def _forget(paths: Iterable[Path]) -> None:
    """All but the ten latest: other branches want theirs."""
    for path in sorted(paths, key=lambda path: path.stat().st_mtime)[:-10]:
        path.unlink(missing_ok=True)
