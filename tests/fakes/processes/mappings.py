"""What the system says of a mapping."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.kv.huge_map import HugeMap


def address_of(mapping: HugeMap) -> int:
    return ctypes.addressof(mapping.bytes)


def mapped_at(address: int) -> dict[str, int]:
    """Return kilobytes by kind of what is mapped from this address on; nothing if nothing is."""
    found: dict[str, int] = {}
    is_here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_here = int(words[0].split("-")[0], 16) == address
        elif is_here and words[-1] == "kB":
            found[words[0].rstrip(":")] = int(words[1])
    return found
