"""The numbers of threads/cores.h, by their names."""

from __future__ import annotations

from enum import IntEnum


class CoresJoin(IntEnum):
    """`baton::CoresJoin`: whether a file of cores was joined."""

    DONE = 0
    FULL = 1
    FOREIGN = 2
    FORMAT = 3
    BUSY = 4
    SYSTEM = 5
