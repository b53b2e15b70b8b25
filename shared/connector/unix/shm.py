"""Transfers between processes of one host: the receiver copies from the sender's own memory.

A sender passes the descriptor of its KV memory once per connection; after that only names of
blocks travel. Nothing has a name except the socket, so a killed process leaves no memory behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.connector.protocol.block_io import BlockIO
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.unix.peer_memory import PeerMemory
from shared.connector.unix.transport import OpenedMemory, UnixTransport
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.connector.unix.packets import Packets
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class ShmConnector(UnixTransport):
    """The connector `shm`."""

    name = "shm"
    prefix = "baton-kv-"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        runtime_dir: Path,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(
            worker=worker,
            memory=memory,
            io=BlockIO(memory),
            runtime_dir=runtime_dir,
            limits=limits,
        )
        self._memory = memory

    def _greet(self, packets: Packets, hello: Frame) -> None:
        packets.send(hello.encode(), (self._memory.fd,))

    def _open(self, frame: Frame, fds: Sequence[int]) -> OpenedMemory | None:
        if frame.kind is not Kind.HELLO:
            return None
        if not fds:
            raise TransferError(TransferFailure.CORRUPT, "a greeting without a memory")
        return PeerMemory(fds[0], frame, self._memory.layout.block_bytes)
