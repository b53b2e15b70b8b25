"""The names of the keys and their content. README.md has the layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.identity import WorkerId


class Kind(StrEnum):
    """Purpose of a key: a part of its name, and the label of the metric of damaged keys."""

    WORKERS = "workers"
    WORKER = "worker"
    BLOCKS = "blocks"
    STAGED = "staged"
    STREAM = "stream"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one directory, with a common prefix."""

    prefix: str

    @property
    def workers(self) -> str:
        """The set of names of workers that may be alive."""
        return f"{self.prefix}:{Kind.WORKERS}"

    @property
    def stream(self) -> str:
        """The stream of changes."""
        return f"{self.prefix}:{Kind.STREAM}"

    @property
    def epoch(self) -> str:
        """The key of the epoch, which changes when Redis loses its data."""
        return f"{self.prefix}:{Kind.EPOCH}"

    @property
    def lease_prefix(self) -> str:
        """The prefix of lease keys; a worker's name follows. A lease is a hash."""
        return f"{self.prefix}:{Kind.WORKER}:"

    def lease(self, worker: WorkerId) -> str:
        """Return the key of a worker's lease: a hash with its registration."""
        return f"{self.lease_prefix}{worker.name}"

    def blocks(self, worker: WorkerId) -> str:
        """Return the key of the set of an incarnation's blocks."""
        return f"{self.prefix}:{Kind.BLOCKS}:{worker.name}:{worker.incarnation}"

    def staged(self, worker: WorkerId, sequence: int) -> str:
        """Return the key of the set of a snapshot, before it replaces `blocks`."""
        return f"{self.prefix}:{Kind.STAGED}:{worker.name}:{worker.incarnation}:{sequence}"

    def own(self, worker: WorkerId) -> list[str]:
        """Return the keys of one incarnation, which scripts need first."""
        return [self.lease(worker), self.blocks(worker)]

    def damaged(self, now_ms: int) -> str:
        """Return the prefix of keys that are set aside now; the key's name follows."""
        return f"{self.prefix}:damaged:{now_ms}:"

    def kind(self, key: str) -> Kind:
        """Return the purpose of a key of this directory."""
        return Kind(key.removeprefix(f"{self.prefix}:").partition(":")[0])
