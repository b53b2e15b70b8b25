"""The receiving half of every connector: the open tickets, and the checks of their use.

It sees frames and payloads, never a socket. Frames of one session must be passed one after the
other; different sessions may run at the same time. Large pieces are stored in the background, so
that the next ones arrive meanwhile; the end of a transfer waits for its pieces.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from typing import TYPE_CHECKING, TypeAlias

from shared.connector.base import Ticket
from shared.connector.protocol.block_io import INLINE_BYTES, NUM_THREADS
from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.credits import MAX_PIECES
from shared.connector.protocol.frame import ID_BYTES, Coding, Frame, Kind
from shared.connector.protocol.greeting import Grant, grant, parties
from shared.connector.protocol.inbound import Inbound, InPlace
from shared.errors import ConfigError, TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from shared.connector.parts import BlockParts
    from shared.connector.protocol.block_io import BlockAccess
    from shared.connector.protocol.inbound import Content
    from shared.connector.protocol.limits import TransferLimits
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout

#: The bytes of a piece, or a function that finds them and may raise TransferError.
Payload: TypeAlias = "Content | InPlace | Callable[[Frame, BlockParts | None], Content]"

#: Maximum of stored pieces of one session: one for each thread, and as many more.
_MAX_STORING = 2 * NUM_THREADS
#: Maximum of pieces of one session that have not arrived; more than any sender has credits for.
_MAX_LANDING = 2 * MAX_PIECES
#: Number of kept spent tickets, only to distinguish a late frame from an invalid one.
_NUM_SPENT = 4096


class Session:
    """The receiver's end of one connection: the sender, and the tickets that it may fill."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        #: Queues a frame for the peer; must not block, nor raise if the peer is gone.
        self.send = send
        self.sender: WorkerId | None = None
        self.transfers: dict[bytes, Inbound] = {}
        self._storing: dict[asyncio.Task[None], bytes] = {}

    async def room(self, payload: Content | InPlace) -> None:
        """Wait until few enough pieces are in progress.

        Raises:
            TransferError: OVERSIZED, too many have not arrived: other sessions must not wait for
                those.
        """
        if isinstance(payload, InPlace):
            if len(self._storing) >= _MAX_LANDING:
                raise TransferError(TransferFailure.OVERSIZED, "more pieces than credits")
            return
        while len(self._storing) >= _MAX_STORING:
            await asyncio.wait(self._storing, return_when=asyncio.FIRST_COMPLETED)

    def store(
        self, transfer_id: bytes, work: Coroutine[object, object, None]
    ) -> asyncio.Task[None]:
        """Start `work` on a piece."""
        task = asyncio.get_running_loop().create_task(work)
        self._storing[task] = transfer_id
        task.add_done_callback(self._storing.pop)
        return task

    def ended(self, inbound: Inbound) -> None:
        """Process the end of one of its transfers, after the peer was notified."""

    def dropped(self) -> None:
        """Process the loss of the connection, or its end by this worker."""

    async def quiet(self, transfer_id: bytes | None = None) -> None:
        """Wait until no piece of this transfer, or of any, is being read."""
        tasks = [task for task, id_ in self._storing.items() if transfer_id in (None, id_)]
        if tasks:
            await asyncio.wait(tasks)


class Receiver:
    """Tickets of one worker. `refusals` counts refused frames by reason."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        layout: KVLayout,
        limits: TransferLimits,
        takes_packed: bool = False,
    ) -> None:
        """Set what is granted. takes_packed: whether senders may pack; pieces are unpacked then."""
        window_bytes = limits.window_bytes
        if window_bytes < layout.block_bytes:
            raise ConfigError(
                f"window_bytes is {window_bytes}, less than one block of {layout.block_bytes} bytes"
            )
        self._worker = worker
        self._layout = layout
        self._fingerprint = layout_fingerprint(layout)
        self._takes_packed = takes_packed
        self._grant = grant(
            Grant(
                window_bytes=window_bytes,
                piece_bytes=limits.piece_bytes,
                takes_packed=takes_packed,
            )
        )
        self._open: dict[bytes, Inbound] = {}
        self._sessions: dict[bytes, Session] = {}
        self._spent: deque[bytes] = deque(maxlen=_NUM_SPENT)
        self._storing: set[asyncio.Task[None]] = set()
        self.refusals: Counter[TransferFailure] = Counter()

    def open(
        self,
        *,
        connector: str,
        address: str,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None,
        io: BlockAccess,
    ) -> Inbound:
        """Return a new ticket for `sender` to fill `blocks` by `io`, or parts of them."""
        targets = blocks if parts is None else tuple(zip(blocks, parts.which, strict=True))
        if len(set(targets)) != len(targets) or not targets:
            raise ValueError(f"request {request_id}: {len(blocks)} blocks, not distinct or none")
        io.check(blocks)
        if parts is not None:
            parts.check_receiver(self._layout.block_bytes)
        ticket = Ticket(
            transfer_id=secrets.token_bytes(ID_BYTES),
            connector=connector,
            address=address,
            request_id=request_id,
            sender=sender,
            receiver=self._worker,
            num_blocks=len(blocks),
            layout=self._layout if parts is None else parts.layout,
        )
        inbound = Inbound(ticket, blocks, io, self._ended, parts)
        self._open[ticket.transfer_id] = inbound
        return inbound

    async def handle(self, session: Session, frame: Frame, payload: Payload) -> None:
        """Process one frame.

        A `payload` that is a function is called only if its blocks are expected.

        Raises:
            TransferError: the peer violates the protocol; call `drop` and disconnect.
        """
        if frame.kind is not Kind.PIECE:
            # Pieces yield themselves: other peers get their turn in any case.
            await asyncio.sleep(0)
        if frame.kind is Kind.HELLO:
            self._greet(session, frame)
        elif session.sender is None:
            raise TransferError(TransferFailure.UNKNOWN_TICKET, "the peer has not sent a HELLO")
        elif frame.kind is Kind.OPEN:
            self._bind(session, frame)
        elif frame.kind is Kind.PIECE:
            await self._take(session, frame, payload)
        elif frame.kind is Kind.DONE:
            await self._done(session, frame)
        elif frame.kind is Kind.ABORT:
            await self._abort(session, frame)
        else:
            raise TransferError(TransferFailure.CORRUPT, f"{frame.kind.name} from a sender")

    def drop(self, session: Session, error: TransferError) -> None:
        """Fail all transfers of a connection that is lost or violated the protocol."""
        if error.reason is not TransferFailure.PEER_LOST:
            self.refusals[error.reason] += 1
            session.send(Frame(kind=Kind.REFUSE, reason=error.reason))
        for inbound in tuple(session.transfers.values()):
            inbound.fail(error.reason, error.detail)
        session.sender = None
        session.dropped()

    async def close(self) -> None:
        """Abort every open transfer."""
        for inbound in tuple(self._open.values()):
            await inbound.abort()
        if self._storing:
            await asyncio.wait(self._storing)

    def _greet(self, session: Session, frame: Frame) -> None:
        sender, receiver = parties(frame)
        if session.sender is not None:
            raise TransferError(TransferFailure.DUPLICATE, f"{sender} greets twice")
        if receiver != self._worker:
            raise TransferError(TransferFailure.UNKNOWN_TICKET, f"{sender} connects to {receiver}")
        # Ranks have layouts of their own; the tickets for parts of blocks name what is compared.
        layouts = {self._fingerprint, *(inbound.fingerprint for inbound in self._open.values())}
        if frame.layout not in layouts:
            raise TransferError(TransferFailure.LAYOUT_MISMATCH, f"{sender} has another layout")
        session.sender = sender
        session.send(self._grant)

    def _bind(self, session: Session, frame: Frame) -> None:
        inbound = self._open.get(frame.transfer_id)
        # A worker without the ticket learns nothing about it, and cannot affect it.
        if inbound is None or inbound.ticket.sender != session.sender:
            self._refuse(session, frame, self._unknown(frame))
        elif frame.transfer_id in self._sessions:
            self._refuse(session, frame, TransferFailure.DUPLICATE)
        elif frame.num_blocks != inbound.ticket.num_blocks:
            self._refuse(session, frame, TransferFailure.OUT_OF_RANGE)
        elif frame.digest != inbound.parts_fingerprint:
            self._refuse(session, frame, TransferFailure.LAYOUT_MISMATCH)
        else:
            self._sessions[frame.transfer_id] = session
            session.transfers[frame.transfer_id] = inbound
            session.send(Frame(kind=Kind.READY, transfer_id=frame.transfer_id))

    async def _take(self, session: Session, frame: Frame, payload: Payload) -> None:
        if frame.coding is not Coding.PLAIN and not self._takes_packed:
            message = f"{frame.coding.name} pieces were not offered"
            raise TransferError(TransferFailure.CORRUPT, message)
        inbound = self._find(session, frame)
        if inbound is None:
            await asyncio.sleep(0)
            self._acknowledge(session, frame)
            return
        try:
            content = payload(frame, inbound.parts) if callable(payload) else payload
        except TransferError as error:
            self._fail(inbound, error)
            self._acknowledge(session, frame)
            return
        if frame.length <= INLINE_BYTES and not isinstance(content, InPlace):
            await self._store(session, inbound, frame, content)
            return
        await session.room(content)
        storing = self._store(session, inbound, frame, content)
        task = session.store(frame.transfer_id, storing)
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(
        self, session: Session, inbound: Inbound, frame: Frame, content: Content | InPlace
    ) -> None:
        try:
            await inbound.accept(frame, content)
        except TransferError as error:
            self._fail(inbound, error)
        self._acknowledge(session, frame)

    def _acknowledge(self, session: Session, frame: Frame) -> None:
        # Refused or not, its bytes no longer count against the window.
        session.send(Frame(kind=Kind.ACK, transfer_id=frame.transfer_id, length=frame.length))

    async def _done(self, session: Session, frame: Frame) -> None:
        await session.quiet(frame.transfer_id)
        inbound = self._find(session, frame)
        if inbound is not None:
            try:
                inbound.done(frame.digest)
            except TransferError as error:
                self._fail(inbound, error)

    def _fail(self, inbound: Inbound, error: TransferError) -> None:
        self.refusals[error.reason] += 1
        inbound.fail(error.reason, error.detail)

    async def _abort(self, session: Session, frame: Frame) -> None:
        inbound = session.transfers.get(frame.transfer_id)
        if inbound is not None:
            reason = frame.reason or TransferFailure.ABORTED
            inbound.fail(reason, "the sender gave it up")
        # Also if it ended before: only now no piece of it is being read any more.
        await session.quiet(frame.transfer_id)
        session.send(Frame(kind=Kind.ABORTED, transfer_id=frame.transfer_id))

    def _find(self, session: Session, frame: Frame) -> Inbound | None:
        inbound = session.transfers.get(frame.transfer_id)
        if inbound is None:
            self._refuse(session, frame, self._unknown(frame))
        return inbound

    def _unknown(self, frame: Frame) -> TransferFailure:
        if frame.transfer_id in self._spent:
            return TransferFailure.LATE
        return TransferFailure.UNKNOWN_TICKET

    def _refuse(self, session: Session, frame: Frame, reason: TransferFailure) -> None:
        self.refusals[reason] += 1
        session.send(Frame(kind=Kind.REFUSE, transfer_id=frame.transfer_id, reason=reason))

    def _ended(self, inbound: Inbound) -> None:
        transfer_id = inbound.ticket.transfer_id
        del self._open[transfer_id]
        self._spent.append(transfer_id)
        session = self._sessions.pop(transfer_id, None)
        if session is None:
            return
        del session.transfers[transfer_id]
        if inbound.receipt is not None:
            digest = inbound.receipt.digest
            session.send(Frame(kind=Kind.VERIFIED, transfer_id=transfer_id, digest=digest))
        else:
            refusal = Frame(kind=Kind.REFUSE, transfer_id=transfer_id, reason=inbound.failure)
            session.send(refusal)
        session.ended(inbound)
