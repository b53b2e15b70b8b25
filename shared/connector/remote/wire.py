"""What the two ends of a control connection say; both are the same version of the program.

The client asks with `Call`s and takes them back with `Cancel`s. The server answers each call once,
and tells `News` by itself. Nothing is pickled: messages are of the types below, or refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from shared.connector.base import Offer, Receipt, Ticket
from shared.connector.packing.rule import PackingMode  # noqa: TC001 read at run time by msgspec
from shared.connector.parts import BlockParts
from shared.connector.protocol.limits import TransferLimits  # noqa: TC001
from shared.errors import ConfigError, InternalError, TransferError, TransferFailure
from shared.identity import WorkerId  # noqa: TC001
from shared.kv.cut import Cut  # noqa: TC001
from shared.kv.layout import KVLayout  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Of a message in bytes: a ticket's parts of a long prompt have some hundred thousand.
MAX_MESSAGE_BYTES = 64 << 20
_T = TypeVar("_T")


class OfferFields(msgspec.Struct, frozen=True):
    """An `Offer`."""

    connector: str
    address: str
    params: dict[str, str]

    @classmethod
    def of(cls, offer: Offer) -> OfferFields:
        """Return the message of an offer."""
        return cls(offer.connector, offer.address, dict(offer.params))

    def offer(self) -> Offer:
        """Return the offer of the message."""
        return Offer(connector=self.connector, address=self.address, params=self.params)


class TicketFields(msgspec.Struct, frozen=True):
    """A `Ticket`."""

    transfer_id: bytes
    connector: str
    address: str
    request_id: str
    sender: WorkerId
    receiver: WorkerId
    num_blocks: int
    layout: KVLayout

    @classmethod
    def of(cls, ticket: Ticket) -> TicketFields:
        """Return the message of a ticket."""
        return cls(*(getattr(ticket, name) for name in cls.__struct_fields__))

    def ticket(self) -> Ticket:
        """Return the ticket of the message."""
        return Ticket(**msgspec.structs.asdict(self))


class PartsFields(msgspec.Struct, frozen=True):
    """A `BlockParts`."""

    layout: KVLayout
    which: tuple[int, ...]
    sender_cuts: tuple[Cut, ...]
    receiver_cuts: tuple[Cut, ...]
    sender_block_bytes: int
    receiver_block_bytes: int

    @classmethod
    def of(cls, parts: BlockParts | None) -> PartsFields | None:
        """Return the message of parts."""
        if parts is None:
            return None
        return cls(*(getattr(parts, name) for name in cls.__struct_fields__))


def parts_of(fields: PartsFields | None) -> BlockParts | None:
    """Return the parts of a message.

    Raises:
        ValueError: the two sides do not go together.
    """
    return None if fields is None else BlockParts(**msgspec.structs.asdict(fields))


class Start(msgspec.Struct, tag=True, frozen=True):
    """Make a connector and start it. The host is the server's own."""

    connector: int
    name: str
    worker: WorkerId
    #: The folder of sockets; empty: the default of the server's host.
    runtime_dir: str
    #: 0: any that is free.
    port: int
    advertise_port: int | None
    encrypt: bool
    heartbeat_s: float
    packing: PackingMode
    limits: TransferLimits


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Close a connector."""

    connector: int


class Meet(msgspec.Struct, tag=True, frozen=True):
    """See `Connector.meet`."""

    connector: int
    worker: WorkerId
    offer: OfferFields


class Reach(msgspec.Struct, tag=True, frozen=True):
    """See `Connector.can_reach`."""

    connector: int
    offer: OfferFields


class Open(msgspec.Struct, tag=True, frozen=True):
    """See `Connector.open`. The client numbers transfers, and uses no number twice."""

    connector: int
    transfer: int
    request_id: str
    sender: WorkerId
    blocks: tuple[int, ...]
    parts: PartsFields | None


class Connect(msgspec.Struct, tag=True, frozen=True):
    """See `Connector.connect`."""

    connector: int
    transfer: int
    ticket: TicketFields
    timeout_s: float
    parts: PartsFields | None


class Wait(msgspec.Struct, tag=True, frozen=True):
    """See `InboundTransfer.wait`."""

    transfer: int
    timeout_s: float


class Push(msgspec.Struct, tag=True, frozen=True):
    """See `OutboundTransfer.push`."""

    transfer: int
    first_index: int
    blocks: tuple[int, ...]


class Finish(msgspec.Struct, tag=True, frozen=True):
    """See `OutboundTransfer.finish`."""

    transfer: int
    timeout_s: float


class Abort(msgspec.Struct, tag=True, frozen=True):
    """See `InboundTransfer.abort` and `OutboundTransfer.abort`. One that is over may be named."""

    transfer: int


Act: TypeAlias = Start | Stop | Meet | Reach | Open | Connect | Wait | Push | Finish | Abort


class Call(msgspec.Struct, tag=True, frozen=True):
    """Ask for an act. Acts begin in the order of their calls; the client numbers them."""

    number: int
    act: Act


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """End an act that goes on; its answer comes when it has ended. Without effect after it."""

    number: int


class Started(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Start`."""

    offer: OfferFields
    takes_parts: bool


class Reached(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Reach`."""

    is_reached: bool


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The answer to `Open`."""

    ticket: TicketFields


class Arrived(msgspec.Struct, tag=True, frozen=True):
    """An inbound transfer is over, and complete."""

    receipt: Receipt


class Sent(msgspec.Struct, tag=True, frozen=True):
    """How far an outbound transfer is; `digest` once it is over and complete."""

    num_pieces: int
    num_copied_bytes: int
    num_wire_bytes: int
    digest: int | None = None


class Done(msgspec.Struct, tag=True, frozen=True):
    """The act is done, and nothing else is to say."""


class Cancelled(msgspec.Struct, tag=True, frozen=True):
    """The act was cancelled, and has ended."""


class FailureKind(StrEnum):
    """Which error an act has raised."""

    TRANSFER = "transfer"
    VALUE = "value"
    CONFIG = "config"
    INTERNAL = "internal"


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The act has raised an error."""

    kind: FailureKind
    message: str
    #: Of a TransferError.
    reason: TransferFailure = TransferFailure.ABORTED
    #: Of an outbound transfer, where the act was one of its own.
    sent: Sent | None = None

    @classmethod
    def of(cls, error: Exception, sent: Sent | None = None) -> Failed:
        """Return the message of an error."""
        if isinstance(error, TransferError):
            return cls(FailureKind.TRANSFER, error.detail, error.reason, sent)
        if isinstance(error, ConfigError):
            return cls(FailureKind.CONFIG, str(error))
        if isinstance(error, ValueError):
            return cls(FailureKind.VALUE, str(error))
        return cls(FailureKind.INTERNAL, repr(error))

    def error(self, where: str) -> Exception:
        """Return the error of the message. where: names the server."""
        match self.kind:
            case FailureKind.TRANSFER:
                return TransferError(self.reason, self.message)
            case FailureKind.CONFIG:
                return ConfigError(f"{where}: {self.message}")
            case FailureKind.VALUE:
                return ValueError(f"{where}: {self.message}")
            case FailureKind.INTERNAL:
                return InternalError(f"{where}: {self.message}")


Result: TypeAlias = Started | Reached | Opened | Arrived | Sent | Done | Cancelled | Failed


class Answer(msgspec.Struct, tag=True, frozen=True):
    """The one answer to a call."""

    number: int
    result: Result


class News(msgspec.Struct, tag=True, frozen=True):
    """What has changed; also without a change, so that the client hears the server's loop."""

    #: By connector: see `Connector.refusals`.
    refusals: dict[int, dict[TransferFailure, int]]
    #: By inbound transfer: see `InboundTransfer.num_blocks_received`.
    received: dict[int, int]


encode = msgspec.msgpack.encode
_ASKED: msgspec.msgpack.Decoder[Call | Cancel] = msgspec.msgpack.Decoder(Call | Cancel)
_TOLD: msgspec.msgpack.Decoder[Answer | News] = msgspec.msgpack.Decoder(Answer | News)


def decode_asked(data: bytes) -> Call | Cancel:
    """Return a client's message. Raises msgspec.MsgspecError if it is none."""
    return _ASKED.decode(data)


def decode_told(data: bytes) -> Answer | News:
    """Return a server's message. Raises msgspec.MsgspecError if it is none."""
    return _TOLD.decode(data)


def changed(now: Mapping[int, _T], told: dict[int, _T]) -> dict[int, _T]:
    """Return what is not as it was `told`, which is brought up to date."""
    found = {key: value for key, value in now.items() if told.get(key) != value}
    told.clear()
    told.update(now)
    return found
