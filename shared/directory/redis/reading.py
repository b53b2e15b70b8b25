"""Checks of values read from Redis: a client with write access may have written anything.

Malformed entries are left out and counted: they must neither stop a router nor be used, and one
worker's malformed entry must not hide others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.directory.base import BlockUpdate
from shared.directory.index import KEY_BYTES, MAX_BLOCKS
from shared.identity import WorkerId
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIER_DIGITS = {tier: str(number).encode() for number, tier in enumerate(BlockTier)}
_TIERS = {digit: tier for tier, digit in TIER_DIGITS.items()}
#: Maximum of digits of a number.
_MAX_DIGITS = 19
_MAX_NAME_BYTES = 255
_MAX_KEY_BYTES = 1024
#: Longest accepted lease: a year.
_MAX_LEASE_MS = 366 * 86_400_000


class MalformedError(ValueError):
    """A value in Redis does not have the form that its key promises."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One live worker's lease in Redis."""

    name: str
    incarnation: str
    record: bytes
    load: bytes
    sequence: int
    lease_s: float
    refused: bool
    #: The seal of the record; empty if there is none.
    seal: bytes
    #: Seconds until the lease ends, unless renewed.
    left_s: float


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """All live workers, as of one entry of the stream."""

    #: If it changes, Redis has lost its data in between.
    epoch: bytes
    last_id: bytes
    leases: tuple[LeaseState, ...]
    #: Leases that cannot be read, by worker: the type that the key lacks (it is set aside while it
    #: lacks it), or `rename` if its fields are malformed.
    damaged: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of the stream: joined, left, reset, delta."""

    worker: WorkerId
    kind: bytes
    #: For reset and delta.
    sequence: int = 0
    update: BlockUpdate | None = None


def read_lease(fields: Sequence[Any]) -> LeaseState:
    """Return a worker as listed by the script `state`.

    Raises:
        MalformedError: a part is missing or of another kind.
    """
    if len(fields) != 9:
        raise MalformedError(f"a lease of {len(fields)} parts")
    name, incarnation, record, load, sequence, lease_ms, refused, seal, left_ms = fields
    if not isinstance(record, bytes) or not isinstance(load, bytes):
        raise MalformedError("a lease without a record or a load")
    return LeaseState(
        name=_name(name),
        incarnation=_name(incarnation),
        record=record,
        load=load,
        sequence=read_number(sequence),
        lease_s=min(read_number(lease_ms), _MAX_LEASE_MS) / 1000,
        refused=bool(refused),
        seal=seal if isinstance(seal, bytes) else b"",
        left_s=min(max(int(left_ms), 0), _MAX_LEASE_MS) / 1000,
    )


@dataclass(frozen=True, slots=True)
class DamageEntry:
    """An entry of the stream: `by` has set `key` aside."""

    key: bytes
    by: bytes


def read_entry(fields: Mapping[bytes, bytes]) -> StreamEntry | DamageEntry:
    """Return an entry of the stream.

    Raises:
        MalformedError: a field is missing or of another kind.
    """
    kind = fields.get(b"k", b"")
    if kind == b"damaged":
        return DamageEntry(fields.get(b"key", b"")[:_MAX_KEY_BYTES], fields.get(b"by", b""))
    worker = WorkerId(_name(fields.get(b"n")), _name(fields.get(b"i")))
    if kind in (b"joined", b"left"):
        return StreamEntry(worker, kind)
    sequence = read_number(fields.get(b"s"))
    if kind == b"reset":
        return StreamEntry(worker, kind, sequence)
    tier = _TIERS.get(fields.get(b"t", b""))
    if kind != b"delta" or tier is None:
        raise MalformedError(f"an entry of kind {kind!r}")
    update = BlockUpdate(
        worker=worker,
        sequence=sequence,
        stored=_unpacked(fields.get(b"a", b"")),
        removed=_unpacked(fields.get(b"r", b"")),
        cleared=fields.get(b"c") == b"1",
        tier=tier,
    )
    return StreamEntry(worker, kind, sequence, update)


class HeldBlocks:
    """The members of a worker's set, collected."""

    def __init__(self) -> None:
        #: Keys by tier.
        self.tiers: dict[BlockTier, list[bytes]] = {tier: [] for tier in BlockTier}
        self.num_malformed = 0
        self._num_left = MAX_BLOCKS

    def add(self, member: bytes) -> bool:
        """Add a member if it is a block; return whether more are accepted."""
        tier = _TIERS.get(member[:1])
        if tier is None or len(member) != 1 + KEY_BYTES:
            self.num_malformed += 1
        else:
            self.tiers[tier].append(member[1:])
        self._num_left -= 1
        return self._num_left > 0


def read_number(value: object) -> int:
    """Return a number from Redis.

    Raises:
        MalformedError: it is no number, or too large.
    """
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > _MAX_DIGITS:
        raise MalformedError("something that is no number")
    return int(value)


def _unpacked(packed: bytes) -> list[bytes]:
    if len(packed) % KEY_BYTES:
        raise MalformedError(f"keys of {len(packed)} bytes")
    return [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]


def _name(value: object) -> str:
    if not isinstance(value, bytes) or not 0 < len(value) <= _MAX_NAME_BYTES:
        raise MalformedError("a worker without a name")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedError("a worker's name that is no text") from error
