"""The base of every connector; a subclass adds its sockets only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.block_io import BlockIO
from shared.connector.protocol.receiver import Receiver
from shared.connector.protocol.sender import Sender
from shared.connector.protocol.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import InboundTransfer, Offer, OutboundTransfer, Ticket
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.block_io import BlockAccess, BlockMemory
    from shared.connector.protocol.frame import Frame
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.link import Link, Wire
    from shared.errors import TransferFailure
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class BaseTransport(ABC):
    """A `Connector` of one worker and its memory, which must exist longer."""

    name: ClassVar[str]

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: BlockMemory,
        io: BlockAccess,
        limits: TransferLimits,
        packing: PackingMode = PackingMode.OFF,
    ) -> None:
        """Make the connector. It owns `io` from now on, and closes it.

        packing: of bfloat16 blocks; only for transports whose pieces carry bytes. Without the
        native library nothing is packed.
        """
        if memory.layout.dtype != "bfloat16" or not io.can_pack:
            packing = PackingMode.OFF
        self._worker = worker
        self._limits = limits
        self._access = io
        #: To other memories that are filled.
        self._others: dict[KVMemory, BlockIO] = {}
        self._tasks = Tasks()
        self._closed = False
        self._receiver = Receiver(
            worker=worker,
            layout=memory.layout,
            limits=limits,
            takes_packed=packing is not PackingMode.OFF,
        )
        self._sender = Sender(
            worker=worker,
            memory=memory,
            io=io,
            limits=limits,
            dial=self._dial,
            packing=packing,
        )

    @property
    def takes_parts(self) -> bool:
        """See `Connector.takes_parts`."""
        return True

    @property
    def takes_memory(self) -> bool:
        """See `Connector.takes_memory`."""
        return True

    @property
    def refusals(self) -> Mapping[TransferFailure, int]:
        """See `Connector.refusals`."""
        return self._receiver.refusals

    async def start(self) -> None:
        """See `Connector.start`."""
        await self._listen()

    async def close(self) -> None:
        """See `Connector.close`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        # Peers are answered until the end: the answers report that their blocks are not read.
        await self._sender.close()
        await self._receiver.close()
        await self._tasks.close()
        await self._unlisten()
        for io in (self._access, *self._others.values()):
            io.close()
        self._others.clear()

    def meet(self, worker: WorkerId, offer: Offer) -> None:  # noqa: B027 most have nothing to note
        """See `Connector.meet`. By default a ticket is sufficient."""

    async def open(
        self,
        *,
        request_id: str,
        sender: WorkerId,
        blocks: Sequence[int],
        parts: BlockParts | None = None,
        memory: KVMemory | None = None,
    ) -> InboundTransfer:
        """See `Connector.open`.

        Raises:
            ValueError: it takes no other memory.
        """
        return self._receiver.open(
            connector=self.name,
            address=self.offer().address,
            request_id=request_id,
            sender=sender,
            blocks=blocks,
            parts=parts,
            io=self._access if memory is None else self._access_to(memory),
        )

    def _access_to(self, memory: KVMemory) -> BlockAccess:
        if not self.takes_memory:
            raise ValueError(f"{self.name} fills no memory but its own")
        if memory not in self._others:
            self._others[memory] = BlockIO(memory)
        return self._others[memory]

    async def connect(
        self, ticket: Ticket, timeout_s: float, parts: BlockParts | None = None
    ) -> OutboundTransfer:
        """See `Connector.connect`."""
        return await self._sender.connect(ticket, timeout_s, parts)

    @abstractmethod
    def offer(self) -> Offer:
        """See `Connector.offer`."""

    @abstractmethod
    async def can_reach(self, offer: Offer) -> bool:
        """See `Connector.can_reach`."""

    @abstractmethod
    async def _listen(self) -> None:
        """Bind and start to serve senders."""

    @abstractmethod
    async def _unlisten(self) -> None:
        """Release the sockets of `_listen`. Every task has ended by then."""

    @abstractmethod
    def _dial(self, link: Link, hello: Frame) -> Wire:
        """Start a connection for `link` and send `hello`. Failures go to `link.lose`."""


class Transport(BaseTransport):
    """A connector of KV memory on the host."""

    def __init__(self, *, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> None:
        self._memory = memory
        self._io = BlockIO(memory)
        super().__init__(worker=worker, memory=memory, io=self._io, limits=limits)
