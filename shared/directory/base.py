"""The directory interfaces: the live workers, and the blocks that each of them holds.

A stale entry may cost a miss, never a wrong byte: entries belong to one incarnation of a worker and
end with its lease. tests/suites/directory.py runs on every implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from shared.identity import Role, WorkerId
    from shared.request.adapter_ref import AdapterRef


#: Labels of a worker: the version of its weights, where they are if they came by an update, and
#: its stage if it takes no requests.
WEIGHT_VERSION = "weight_version"
WEIGHT_PATH = "weight_path"
STAGE = "stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker's registration. Constant for its incarnation."""

    worker: WorkerId
    #: The role that it started with.
    role: Role
    #: host:port of its gRPC services.
    address: str
    model: str
    #: Hex digest of the root of its block hashes; workers with equal digests can share blocks.
    namespace: str
    block_size: int
    num_blocks: int
    max_model_len: int
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Hex digest of the probe of shared/directory/probe.py; empty if the worker does not send it.
    probe: str = ""
    #: Hex digest of everything that decides its tokens; empty if the worker is too old to send it.
    identity: str = ""
    #: Generation of the model's weights, numbered by the operator; each has one identity.
    generation: int = 0
    #: Identity of the generation when the worker joined; empty: the worker's own.
    generation_identity: str = ""
    #: Unix time of its first registration.
    joined_ms: int = 0
    #: The roles whose services it has; empty: that of its role alone.
    serves: frozenset[Role] = frozenset()
    #: Blocks of host memory for prompts from prefill workers while its pool is full.
    num_landing_blocks: int = 0
    #: Sequences that run at a time; others wait. 0: the worker is too old to tell.
    max_num_seqs: int = 0

    @property
    def served(self) -> frozenset[Role]:
        """The roles whose services it has."""
        return self.serves or frozenset({self.role})

    @property
    def weight_version(self) -> str:
        """The operator's name of its weights; empty if the worker is too old to tell."""
        return self.labels.get(WEIGHT_VERSION, "")

    @property
    def weight_path(self) -> str:
        """Folder of weights that came by an update; empty: they are those of its settings."""
        return self.labels.get(WEIGHT_PATH, "")

    @property
    def sleeps(self) -> bool:
        """Whether it has no KV cache, and takes no requests until it wakes up."""
        return STAGE in self.labels


class AdapterPlace(StrEnum):
    """Where a worker has an adapter: its best place."""

    #: On disk only.
    KNOWN = "known"
    #: In host memory.
    HOST = "host"
    #: Beside the model's weights: a step may use it.
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """An adapter that a worker serves."""

    adapter: AdapterRef
    #: Its largest rank.
    rank: int
    place: AdapterPlace
    #: Milliseconds that its last load from disk took on this worker.
    load_ms: float = 0.0
    #: Sequences with it.
    num_running: int = 0
    num_waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker's load at its last heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    draining: bool = False
    #: Whether its engine makes no progress, or failed its own check.
    unhealthy: bool = False
    #: The adapters that it serves, by name.
    adapters: tuple[AdapterState, ...] = ()
    #: Most adapters in one of its steps; 0: it serves none.
    max_adapters: int = 0
    #: Most adapters that its memory takes; 0: it does not say.
    max_held_adapters: int = 0
    #: The role for which routers prefer it; None: the one that it started with.
    preference: Role | None = None


class RegistryChange(StrEnum):
    """Kinds of changes of a worker."""

    JOINED = "joined"
    UPDATED = "updated"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEvent:
    """One change of membership or load."""

    change: RegistryChange
    record: WorkerRecord
    load: WorkerLoad
    #: For LEFT: whether the worker deregistered; otherwise its lease ended.
    in_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedWorker:
    """A live worker whose record is refused: it gets no requests."""

    worker: WorkerId
    #: The worker's address, according to its record.
    address: str
    #: The reason, in words.
    reason: str


class WorkerRegistry(Protocol):
    """The live workers. A worker is alive while it renews its lease."""

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        """Add a worker. An older incarnation of the same name leaves, with all its blocks.

        Raises:
            IncompatiblePeerError: its block hashes differ from ours; it must not serve.
        """
        ...

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        """Renew the lease.

        Raises:
            UnknownIncarnationError: the lease ran out or the directory restarted: register again,
                then publish a snapshot.
            IncompatiblePeerError: a reader of the directory found that its block hashes differ.
        """
        ...

    async def deregister(self, worker: WorkerId) -> None:
        """Remove a worker at once, with all blocks. Unknown workers are ignored."""
        ...

    async def workers(self) -> list[RegistryEvent]:
        """Return all live workers, each as a JOINED event."""
        ...

    def watch(self) -> AsyncIterator[RegistryEvent]:
        """Yield all live workers as JOINED, then every change, in order, until the caller closes
        it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUpdate:
    """A change of one tier of one worker.

    `sequence` counts that incarnation's updates from 1, over all tiers. `cleared` is applied before
    the rest and for this tier alone.
    """

    worker: WorkerId
    sequence: int
    stored: Sequence[bytes] = ()
    removed: Sequence[bytes] = ()
    cleared: bool = False
    tier: BlockTier = BlockTier.DEVICE


class BlockDirectory(Protocol):
    """The blocks that workers hold in any tier. Hashes are those of `shared/kv/identity.py`."""

    async def publish(self, update: BlockUpdate) -> None:
        """Apply a delta. An update that was applied already is ignored.

        Raises:
            SequenceGapError: an update before this one is missing; nothing was applied.
            UnknownIncarnationError: the worker is not registered.
        """
        ...

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """Replace all entries of this worker by a snapshot as of `sequence`.

        Raises:
            UnknownIncarnationError: the worker is not registered.
        """
        ...

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """Return how many leading hashes each worker that holds hashes[0] holds without a gap."""
        ...
