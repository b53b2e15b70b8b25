"""A rank's place on its host."""

from __future__ import annotations

from typing import Any

import msgspec


class Seat(msgspec.Struct, frozen=True):
    """Where a rank is among those of its host, and what it loads otherwise than rank 0 says."""

    index: int
    #: The number of ranks of the host.
    count: int
    #: This host's address for rank 0 and for peers, if rank 0 is on another one; else empty.
    host: str = ""
    #: The address by which peers reach it, if that is another one.
    advertise_host: str | None = None
    #: By folder of rank 0's host: this host's.
    folders: dict[str, str] = {}
    #: Of `load_model`: this host's values.
    options: dict[str, Any] = {}
