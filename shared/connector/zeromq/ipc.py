"""The `zmq` connector on a Unix socket: within one host, if memory cannot be shared."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.unix.runtime_dir import prepare, remove_stale
from shared.connector.zeromq.connector import ZmqConnector
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

_PREFIX = "baton-zmq-"
#: Maximum length of a Unix socket's name in the kernel, its last zero byte included.
_MAX_PATH_BYTES = 108


class ZmqIpcConnector(ZmqConnector):
    """The connector `zmq_ipc`. Its socket lies in `runtime_dir`, which only this user may enter."""

    name = "zmq_ipc"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        runtime_dir: Path,
        heartbeat_s: float = 2.0,
        packing: PackingMode = PackingMode.OFF,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        path = runtime_dir.absolute() / f"{_PREFIX}{secrets.token_hex(8)}.sock"
        if len(str(path).encode()) >= _MAX_PATH_BYTES:
            raise ConfigError(f"runtime_dir {runtime_dir} is too long for the name of a socket")
        super().__init__(
            worker=worker,
            memory=memory,
            endpoint=f"ipc://{path}",
            heartbeat_s=heartbeat_s,
            packing=packing,
            limits=limits,
        )
        self._path = path

    async def _listen(self) -> None:
        prepare(self._path.parent)
        remove_stale(self._path.parent, _PREFIX, socket.SOCK_STREAM)
        await super()._listen()

    async def _unlisten(self) -> None:
        await super()._unlisten()
        self._path.unlink(missing_ok=True)
