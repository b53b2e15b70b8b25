"""Transfers between processes of one host: the receiver copies from the sender's own memory.

A sender passes the descriptor of its KV memory once per connection; after that only names of
blocks travel. Nothing has a name except the socket, so a killed process leaves no memory behind.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shared.connector.base import Offer
from shared.connector.frame import Frame, Kind, decode
from shared.connector.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.packets import Packets, connect, listen
from shared.connector.peer_memory import PeerMemory
from shared.connector.receiver import Session
from shared.connector.runtime_dir import prepare, remove_stale
from shared.connector.transport import Transport
from shared.errors import ConfigError, TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.link import Link, Wire
    from shared.connector.receiver import Rows
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

_PREFIX = "baton-kv-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShmWire:
    """A `Wire` that names blocks of a memory whose descriptor the receiver has."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        self._packets.send(frame.encode())

    def send_piece(self, frame: Frame, blocks: Sequence[int]) -> None:
        """See `Wire.send_piece`."""
        sources = np.asarray(blocks, "<u4").tobytes()
        self.send(replace(frame, body=frame.body + sources))

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`. On this side nothing refers to a block."""

    def hang_up(self) -> None:
        """See `Wire.hang_up`."""
        self._packets.close()


class _NoWire(ShmWire):
    """Where a link leads that could not be dialled."""

    def __init__(self) -> None:
        """Nothing to hold."""

    def send(self, frame: Frame) -> None:
        """Nobody is there."""

    def hang_up(self) -> None:
        """Nobody is there."""


class ShmConnector(Transport):
    """The connector `shm`. Its socket lies in `runtime_dir`, which only this user may enter."""

    name = "shm"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        runtime_dir: Path,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(worker=worker, memory=memory, limits=limits)
        self._path = runtime_dir.absolute() / f"{_PREFIX}{secrets.token_hex(8)}.sock"
        self._listener: socket.socket | None = None
        self._boot_id = ""

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return Offer(
            connector=self.name, address=str(self._path), params={"boot_id": self._boot_id}
        )

    def can_reach(self, offer: Offer) -> bool:
        """Whether the peer runs under the same kernel, in reach of its socket."""
        if offer.params.get("boot_id") != self._boot_id:
            return False
        try:
            return stat.S_ISSOCK(os.stat(offer.address).st_mode)
        except OSError:
            return False
