"""One end of a connection between two memories, by NIXL: an agent of its own with the memory.

Memory of the host is registered as DRAM, a CUDA device's as VRAM with the number of the device.
VRAM has never been registered by this code: there was no device.

Each connection has its own agent (18 ms and 4 MB), because taking an agent down is the only way to
end what its peer may still write: NIXL cannot take back a write that was posted (releasing its
handle lets it go on, seen in 1.5.1), and the side that is written to has no say otherwise.

Agents are used from one thread, and move nothing on by themselves: their own progress threads
would each keep a core busy, idle or not.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shared.connector.nixl.descriptors import part_descriptors
from shared.errors import ConfigError
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.connector.nixl.device import DeviceMemory
    from shared.connector.protocol.link import PieceParts

    OnEnd = Callable[[str], None]

LaneMemory: TypeAlias = "KVMemory | DeviceMemory"

#: Set unless the user has set it. Errors are reported as the transfer's failure; the libraries
#: would repeat them on standard output, once per retry.
#: Transports that let a peer of this host write without the owner's agent could not be ended. CUDA
#: IPC is one of them and allowed, because there is no other fast way: see `connector.py`.
_ENVIRONMENT = {
    "NIXL_LOG_LEVEL": "FATAL",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_TLS": "^cma,knem,xpmem",
}
_BACKEND = "UCX"
_LOADING = threading.Lock()


class LaneError(Exception):
    """NIXL refuses a call, or the peer's agent is gone."""


def load_nixl() -> Any:
    """Return the module `nixl._api`; takes a second the first time.

    Raises:
        ConfigError: it is not installed.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # One thread at a time: another would take what nixl sets for what was there before.
    with _LOADING:
        raise_exceptions = logging.raiseExceptions
        try:
            api = importlib.import_module("nixl._api")
        except ImportError as error:
            raise ConfigError(
                f"connector nixl needs the extra `nixl` (pip install 'nixl>=1.5'): {error}"
            ) from error
        finally:
            logging.raiseExceptions = raise_exceptions  # nixl sets it for the whole process
    logging.getLogger("nixl").setLevel(os.environ["NIXL_LOG_LEVEL"].replace("WARN", "WARNING"))
    return api


class Lane:
    """One connection. All methods are called on one thread, `Pump`'s.

    Raises:
        LaneError: from every method but `close`.
    """

    def __init__(self, memory: LaneMemory, on_notified: Callable[[bytes], None]) -> None:
        """Make a lane. `on_notified` is called with each name that comes with a peer's write."""
        api = load_nixl()
        #: Data of the memory: its registration, the address of its first block, its device; see
        #: `Kind.DOOR`.
        self._keeps, self.address, self.device = _whereabouts(memory)
        self._num_blocks, self._block_bytes = memory.num_blocks, memory.layout.block_bytes
        self._on_notified = on_notified
        self._writes: dict[Any, OnEnd] = {}
        #: The peer: its agent, the address of its first block, their number, its device.
        self._peer: tuple[str, int, int, int] | None = None
        #: Descriptors of all of our blocks, and of the peer's, made for the first whole one.
        self._tables: tuple[Any, Any] | None = None
        #: Transfers whose sender may be writing.
        self.num_expected = 0
        self.is_closed = False
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[_BACKEND])
        try:
            self._agent = api.nixl_agent(secrets.token_hex(8), config)
            kind, device_id = _segment(self.device)
            region = (self.address, memory.num_bytes, device_id, "")
            self._registered = self._agent.register_memory([region], kind)
            self.metadata: bytes = self._agent.get_agent_metadata()
        except Exception as error:
            what = f"CUDA device {self.device - 1}" if self.device else "the host"
            raise LaneError(f"no agent with the memory of {what}: {error}") from error

    @property
    def is_aimed(self) -> bool:
        """Whether `aim` has been called, so that the lane can write."""
        return self._peer is not None

    @property
    def is_busy(self) -> bool:
        """Whether `poll` has work: own writes in progress, or peers that may be writing."""
        return bool(self._writes) or self.num_expected > 0

    def aim(self, metadata: bytes, address: int, num_blocks: int, device: int) -> None:
        """Set the peer's blocks that `write` writes into."""
        try:
            peer = self._agent.add_remote_agent(metadata)
        except Exception as error:
            raise LaneError(f"no way to the peer's memory: {error}") from error
        self._peer = (peer, address, num_blocks, device)

    def write(
        self,
        blocks: Sequence[int],
        places: Sequence[int],
        name: bytes,
        on_end: OnEnd,
        parts: PieceParts | None = None,
    ) -> None:
        """Write our `blocks` to the peer's `places`; the peer is notified with `name` afterwards.

        With `parts`, only those of the blocks. `on_end` is called when no block is read any more:
        with None, or with the error.
        """
        if self.is_closed or self._peer is None:
            raise LaneError("the connection is closed")
        handle = None
        try:
            if parts is None:
                here, there = self._whole(self._peer)
                handle = self._agent.make_prepped_xfer(
                    *("WRITE", here, list(blocks), there, list(places), name)
                )
            else:
                handle = self._prepare(self._peer, blocks, places, name, parts)
            state = self._agent.transfer(handle)
        except Exception as error:
            if handle is not None:
                with suppress(Exception):
                    handle.release()
            raise LaneError(f"a write was refused: {error}") from error
        self._writes[handle] = on_end
        if state != "PROC":
            self._end(handle, "" if state == "DONE" else state)

    def poll(self) -> None:
        """Make progress on writes."""
        for handle in tuple(self._writes):
            try:
                state = self._agent.check_xfer_state(handle)
            except Exception as error:  # noqa: BLE001 one type of the library's for every cause
                state = str(error)
            if state != "PROC":
                self._end(handle, "" if state == "DONE" else state)
        try:
            notifications = self._agent.get_new_notifs()
        except Exception as error:
            raise LaneError(f"nothing can arrive: {error}") from error
        for names in notifications.values():
            for name in names:
                self._on_notified(name)

    def close(self) -> None:
        """Close the lane. After the return nothing is read or written through it. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        on_ends = tuple(self._writes.values())
        handles = [*self._writes, *(self._tables or ())]
        self._writes.clear()
        self._peer = self._tables = None
        while handles:
            # Writes continue until the agent is gone, and it exists while a handle refers to it.
            with suppress(Exception):
                handles.pop().release()
        with suppress(Exception):
            self._agent.deregister_memory(self._registered)
        del self._agent, self._registered
        self._keeps = None
        for on_end in on_ends:
            on_end("the connection is closed")

    def _end(self, handle: Any, error: str) -> None:
        on_end = self._writes.pop(handle)
        handle.release()
        on_end(error)

    def _whole(self, peer: tuple[str, int, int, int]) -> tuple[Any, Any]:
        """Return the descriptors of all blocks on both sides."""
        if self._tables is None:
            here = self._table("NIXL_INIT_AGENT", self.address, self._num_blocks, self.device)
            self._tables = (here, self._table(*peer))
        return self._tables

    def _prepare(
        self,
        peer: tuple[str, int, int, int],
        blocks: Sequence[int],
        places: Sequence[int],
        name: bytes,
        parts: PieceParts,
    ) -> Any:
        """Return the handle of a write of parts of blocks, each range by itself."""
        agent, address, num_blocks, device = peer
        if max(places) >= num_blocks:
            raise LaneError(f"no block {max(places)} of {num_blocks}")
        lists = part_descriptors(blocks, places, parts, self._block_bytes)
        found = []
        for (offsets, sizes), start, on in zip(
            lists, (self.address, address), (self.device, device), strict=True
        ):
            kind, device_id = _segment(on)
            table = np.empty((len(offsets), 3), np.uint64)
            table[:, 0] = offsets + np.uint64(start)
            table[:, 1] = sizes
            table[:, 2] = device_id
            found.append(self._agent.get_xfer_descs(table, kind))
        return self._agent.initialize_xfer("WRITE", *found, agent, name)

    def _table(self, agent: str, address: int, num_blocks: int, device: int) -> Any:
        """Return descriptors of every block of `agent` from `address` on, ready for writes."""
        kind, device_id = _segment(device)
        table = np.empty((num_blocks, 3), np.uint64)  # address, size, device
        steps = np.arange(num_blocks, dtype=np.uint64)
        table[:, 0] = address + steps * np.uint64(self._block_bytes)
        table[:, 1:] = self._block_bytes, device_id
        return self._agent.prep_xfer_dlist(agent, table, kind)


def _whereabouts(memory: LaneMemory) -> tuple[object, int, int]:
    if isinstance(memory, KVMemory):
        rows = memory.blocks
        return rows, int(rows.ctypes.data), 0
    return memory, memory.address, 0 if memory.device_id is None else memory.device_id + 1


def _segment(device: int) -> tuple[str, int]:
    """Return NIXL's name of the kind of memory, and the device's number."""
    return ("VRAM", device - 1) if device else ("DRAM", 0)
