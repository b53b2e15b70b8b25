"""The names of the keys, and what each of them holds. README.md has the layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.identity import WorkerId


class Kind(StrEnum):
    """What a key is for: a part of its name, and the label of the metric of damaged keys."""

    WORKERS = "workers"
    WORKER = "worker"
    BLOCKS = "blocks"
    STAGED = "staged"
    STREAM = "stream"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one directory, which share a prefix."""

    prefix: str

    @property
    def workers(self) -> str:
        """The set of names that may be alive."""
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
        """Before a worker's name: the key of its lease, a hash."""
        return f"{self.prefix}:{Kind.WORKER}:"

    def lease(self, worker: WorkerId) -> str:
        """The hash with what a worker says of itself."""
        return f"{self.lease_prefix}{worker.name}"

    def blocks(self, worker: WorkerId) -> str:
        """The set of blocks that an incarnation holds."""
        return f"{self.prefix}:{Kind.BLOCKS}:{worker.name}:{worker.incarnation}"

    def staged(self, worker: WorkerId, sequence: int) -> str:
        """The set that a snapshot is written to before it takes the place of `blocks`."""
        return f"{self.prefix}:{Kind.STAGED}:{worker.name}:{worker.incarnation}:{sequence}"

    def own(self, worker: WorkerId) -> list[str]:
        """The keys of one incarnation, as scripts want them first."""
        return [self.lease(worker), self.blocks(worker)]

    def damaged(self, now_ms: int) -> str:
        """Before a key's name: where the key is kept after it was set aside."""
        return f"{self.prefix}:damaged:{now_ms}:"

    def kind(self, key: str) -> Kind:
        """What a key of this directory is for."""
        return Kind(key.removeprefix(f"{self.prefix}:").partition(":")[0])
