"""The connector interface: open a transfer, let a peer fill it.

One primitive serves prefill hand-off, fetching a prefix from a peer, and moving a running sequence:
only the sender differs. Implementations move bytes between two `KVMemory`s; they know no requests,
models or scheduling. tests/suites/connector/behaviour.py runs on every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.parts import BlockParts
    from shared.errors import TransferFailure
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How a peer reaches this worker through one connector. Travels in the handshake."""

    connector: str
    address: str
    #: Data for the peer's `can_reach`, e.g. the host's boot id for `shm`.
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right to fill exactly these blocks once. Only `sender` may present it.

    `transfer_id` is 16 random bytes made by the receiver and never reused. Blocks are named by
    their index in the transfer (0 … num_blocks-1): a sender never learns the receiver's block ids.
    """

    transfer_id: bytes
    connector: str
    address: str
    request_id: str
    sender: WorkerId
    receiver: WorkerId
    num_blocks: int
    layout: KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of a transfer.

    `digest`: xxh3-64 over every piece's first index and xxh3-64, in order.
    """

    digest: int
    num_blocks: int
    num_bytes: int
    #: Bytes of the payloads: fewer than `num_bytes` if pieces were packed.
    num_wire_bytes: int
    num_pieces: int
    #: Bytes copied by the receiving process within its own memory.
    num_copied_bytes: int
    #: Time from the first byte to the last verified one.
    duration_ms: float


class InboundTransfer(Protocol):
    """The receiver's side of one transfer. Owned by the request that opened it."""

    @property
    def ticket(self) -> Ticket:
        """The ticket for the sender."""
        ...

    @property
    def num_blocks_received(self) -> int:
        """Blocks that are complete and verified so far."""
        ...

    async def wait(self, timeout_s: float) -> Receipt:
        """Wait until every block has arrived and was verified, and the sender has reported the end.

        When this returns, the bytes are final and the ticket is spent. When it raises, the ticket
        is spent too, no byte will be written any more, and nothing received may be used.

        Raises:
            TransferError: corrupt, short, aborted by the sender, sender lost, or timed out.
        """
        ...

    async def abort(self) -> None:
        """End the transfer. After the return its blocks are no longer written to. Idempotent.

        If the sender writes the blocks itself (`nixl`), `wait` and this return only after it has
        confirmed that it stopped, or our end of its connection was closed because it did not within
        `TransferLimits.release_timeout_s`: until then the blocks stay the caller's.
        """
        ...


class OutboundTransfer(Protocol):
    """The sender's side of one transfer. Source blocks stay pinned until `finish` or `abort`."""

    @property
    def num_pieces(self) -> int:
        """Number of pieces sent. A push is one piece, unless the receiver accepts less at once."""
        ...

    @property
    def num_copied_bytes(self) -> int:
        """Number of bytes that this process has copied within its own memory for the transfer.

        0 if all blocks were read or written in place.
        """
        ...

    @property
    def num_wire_bytes(self) -> int:
        """Number of bytes of the payloads of all pieces: fewer than their blocks have if packed."""
        ...

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        """Send local `blocks` as indices first_index, first_index+1, … of the transfer.

        Returns after flow control has admitted them, which may be before they are read: the source
        blocks must not change until `finish` or `abort` has returned. Indices may come in any
        order, each exactly once.

        Raises:
            TransferError: the receiver refused or is gone; further pushes fail the same way.
        """
        ...

    async def finish(self, timeout_s: float) -> int:
        """Wait until the receiver has verified everything; return the digest of the sent bytes.

        Raises:
            TransferError: as `push`, or INCOMPLETE when not every index was pushed.
        """
        ...

    async def abort(self) -> None:
        """Stop sending and notify the receiver. After the return no source block is read."""
        ...


class Connector(Protocol):
    """A transport of blocks between workers. Bound to one worker and its `KVMemory`.

    All methods are called on the event loop that called `start`.
    """

    @property
    def name(self) -> str:
        """The connector's name in configuration, metrics and the handshake."""
        ...

    @property
    def takes_parts(self) -> bool:
        """Whether `open` takes parts of blocks; if not, it moves whole ones only."""
        ...

    @property
    def takes_memory(self) -> bool:
        """Whether `open` takes another memory than the connector's own."""
        ...

    @property
    def refusals(self) -> Mapping[TransferFailure, int]:
        """Number of refused frames by reason: from any peer, for any ticket or none."""
        ...

    async def start(self) -> None:
        """Bind sockets and start to receive. Call it before `offer`."""
        ...

    async def close(self) -> None:
        """Abort every open transfer in both directions, then release sockets and mappings."""
        ...

    def offer(self) -> Offer:
        """Return the data that a peer needs to send to this worker."""
        ...

    async def can_reach(self, offer: Offer) -> bool:
        """Return whether this worker could send to a peer with this offer.

        At most a stat, where the memory is. No packet is sent to the peer.
        """
        ...

    def meet(self, worker: WorkerId, offer: Offer) -> None:
        """Record a peer's offer: an encrypted connector accepts only senders with a recorded offer.

        Called after a handshake, before a ticket is opened for that worker. A new incarnation
        replaces the previous one.
        """
        ...

    async def open(
        self,
        *,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None = None,
        memory: KVMemory | None = None,
    ) -> InboundTransfer:
        """Let `sender` fill local `blocks`, which must be distinct and owned by the caller.

        When this returns, the ticket may be presented. If it is cancelled, or raises, no transfer
        is open. The blocks must not be freed before `wait` or `abort` has returned. With `parts`,
        only those of each block are written, and `blocks` is by index: a block may come several
        times. With `memory`, which must exist longer than the connector and have its layout, they
        are blocks of that; the sender cannot tell.
        """
        ...

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        """Start sending into a ticket that names this worker as its sender.

        `parts`: equal to those that the ticket was opened with.

        Raises:
            TransferError: unreachable receiver, or a ticket that it refuses.
        """
        ...
