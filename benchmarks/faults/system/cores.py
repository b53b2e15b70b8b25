"""The file of the cores that workers lend to each other, read from outside (cores.h)."""

from __future__ import annotations

import mmap
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FORMAT = 0x4E4F544142000001
_HEADER = struct.Struct("<QI")
_CLAIM = struct.Struct("<Q")
_CLAIMS_AT = 512
_MAPPED = re.compile(r"\s(/\S*/baton-cores-\S+)$", re.MULTILINE)
#: Of an open file: the one byte that a member has locked, behind the first place.
_LOCK = re.compile(r"OFDLCK .*\s(\d+) \1$", re.MULTILINE)
_FIRST_PLACE = 1


class Claim(NamedTuple):
    """Of one core. Members are numbers from 1 on; 0 is none."""

    owner: int
    user: int
    #: Of the user: a place may have had others.
    life: int

    @property
    def is_borrowed(self) -> bool:
        """Whether another than its owner uses it; false for one that has lost its owner."""
        return self.owner != 0 and self.user not in (0, self.owner)


class CoresFile:
    """Reads a file as it changes; close it."""

    def __init__(self, path: Path) -> None:
        """Map it.

        Raises:
            ValueError: it has another format than this one.
        """
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        found, _ = _HEADER.unpack_from(self._map)
        if found != _FORMAT:
            raise ValueError(f"{path} has the format {found:#x}, and {_FORMAT:#x} is known here")

    def close(self) -> None:
        """Unmap it."""
        self._map.close()

    def claims(self) -> list[Claim]:
        """Return the user of each core now."""
        _, num_cores = _HEADER.unpack_from(self._map)
        return [self.claim(core) for core in range(num_cores)]

    def claim(self, core: int) -> Claim:
        """Return the user of a core now."""
        (word,) = _CLAIM.unpack_from(self._map, _CLAIMS_AT + core * _CLAIM.size)
        return Claim(word & 0xFFFF, word >> 16 & 0xFFFF, word >> 32)


def path_of(pid: int) -> Path | None:
    """Return the file that a worker has joined; None: it shares no cores."""
    found = _MAPPED.search(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"))
    return Path(found[1]) if found else None


def place_of(pid: int, path: Path) -> int:
    """Return a worker's number in the file; 0: it is no member."""
    for number in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if number.readlink() != path:
                continue
            info = Path(f"/proc/{pid}/fdinfo/{number.name}").read_text(encoding="utf-8")
            for byte in _LOCK.findall(info):
                if int(byte) > _FIRST_PLACE:
                    return int(byte) - _FIRST_PLACE
    return 0
