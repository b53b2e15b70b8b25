"""A file system's data that change with every change of a file's content."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
#: Local file systems that give a changed file a new ctime at once. Servers of network file systems
#: may be late, or have no ctime.
_LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Equal stamps at two moments: the file was neither replaced nor written in between.

    A write within one tick of the file systems' clock (milliseconds) after the last one may leave
    the stamp unchanged: a stamp is evidence only if it `is_settled`.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | int) -> FileStamp:
        """Return the stamp of a path, or of an open file.

        Raises:
            OSError: the file cannot be accessed.
        """
        status = os.stat(file)  # noqa: PTH116 a descriptor is no path
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    def is_settled(self, now_ns: int, *, margin_s: float = 2.0) -> bool:
        """Return whether the last change is old enough for a later one to have another stamp."""
        return now_ns - self.ctime_ns > margin_s * 1e9

    def __str__(self) -> str:
        return ":".join(map(str, astuple(self)))


def keeps_change_times(path: Path) -> bool:
    """Return whether the file is on a local file system with reliable stamps."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        real = path.resolve(strict=True)
    except OSError:
        return False
    best, kind = -1, ""
    for line in lines:
        before, _, behind = line.partition(" - ")
        point = Path(_unescaped(before.split(" ")[4]))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), behind.split(" ")[0]
    return kind in _LOCAL


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
