"""Who a worker is. The incarnation tells a restarted worker from the one it replaced."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a process of the cluster does."""

    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class WorkerId:
    """One life of one worker. Two lives of the same worker never compare equal."""

    name: str
    incarnation: str

    @classmethod
    def born(cls, name: str) -> WorkerId:
        """A new incarnation of the worker called `name`."""
        return cls(name, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"{self.name}@{self.incarnation}"
