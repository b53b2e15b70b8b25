"""Connectors by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from shared.connector.local import LocalConnector, LocalHub
from shared.connector.nixl.connector import NixlConnector
from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.unix.shm import ShmConnector
from shared.connector.zeromq.connector import ZmqConnector
from shared.connector.zeromq.curve import Curve
from shared.connector.zeromq.ipc import ZmqIpcConnector
from shared.connector.zeromq.sockets import PlainText
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shared.connector.base import Connector
    from shared.connector.nixl.device import DeviceMemory
    from shared.connector.nixl.lane import LaneMemory
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """Settings of one process's connectors. Each connector uses its own."""

    #: `local`: shared by all workers of the process; None where there is only one.
    hub: LocalHub | None = None
    #: `shm` and `zmq_ipc`: the folder of the sockets, this user's alone.
    runtime_dir: Path | None = None
    #: `zmq`, and `nixl` for its frames.
    endpoint: str = "tcp://127.0.0.1:0"
    advertise_host: str | None = None
    #: `zmq`: the address for peers, if it differs from the one that it listens on.
    advertise_port: int | None = None
    #: `zmq` and `nixl`: whether senders need the key of their handshake.
    encrypt: bool = False
    heartbeat_s: float = 2.0
    #: `zmq` and `zmq_ipc`: when bfloat16 blocks are packed.
    packing: PackingMode = PackingMode.OFF
    limits: TransferLimits = DEFAULT_LIMITS


Factory: TypeAlias = "Callable[[WorkerId, KVMemory, ConnectorSettings], Connector]"
DeviceFactory: TypeAlias = "Callable[[WorkerId, DeviceMemory, ConnectorSettings], Connector]"


def _local(worker: WorkerId, memory: KVMemory, settings: ConnectorSettings) -> Connector:
    if settings.hub is None:
        raise ConfigError("connector local needs a hub: it joins workers of one process")
    return LocalConnector(worker=worker, memory=memory, hub=settings.hub, limits=settings.limits)


def _shm(worker: WorkerId, memory: KVMemory, settings: ConnectorSettings) -> Connector:
    if settings.runtime_dir is None:
        raise ConfigError("connector shm needs a runtime_dir")
    return ShmConnector(
        worker=worker, memory=memory, runtime_dir=settings.runtime_dir, limits=settings.limits
    )


def _zmq_ipc(worker: WorkerId, memory: KVMemory, settings: ConnectorSettings) -> Connector:
    if settings.runtime_dir is None:
        raise ConfigError("connector zmq_ipc needs a runtime_dir")
    return ZmqIpcConnector(
        worker=worker,
        memory=memory,
        runtime_dir=settings.runtime_dir,
        heartbeat_s=settings.heartbeat_s,
        packing=settings.packing,
        limits=settings.limits,
    )


def _zmq(worker: WorkerId, memory: KVMemory, settings: ConnectorSettings) -> Connector:
    return ZmqConnector(
        worker=worker,
        memory=memory,
        endpoint=settings.endpoint,
        advertise_host=settings.advertise_host,
        advertise_port=settings.advertise_port,
        heartbeat_s=settings.heartbeat_s,
        packing=settings.packing,
        security=Curve() if settings.encrypt else PlainText(),
        limits=settings.limits,
    )


def _nixl(worker: WorkerId, memory: LaneMemory, settings: ConnectorSettings) -> Connector:
    return NixlConnector(
        worker=worker,
        memory=memory,
        endpoint=settings.endpoint,
        advertise_host=settings.advertise_host,
        heartbeat_s=settings.heartbeat_s,
        security=Curve() if settings.encrypt else PlainText(),
        limits=settings.limits,
    )


FACTORIES: Mapping[str, Factory] = {
    "local": _local,
    "shm": _shm,
    "zmq_ipc": _zmq_ipc,
    "zmq": _zmq,
    "nixl": _nixl,
}
#: Connectors that transfer a device's blocks directly, without staging on the host.
ON_DEVICE: Mapping[str, DeviceFactory] = {"nixl": _nixl}
#: Removed connectors, by name, and their successors.
_SUCCESSORS = {"cuda_ipc": "nixl"}


def require_known(names: Sequence[str]) -> None:
    """Check that there is a connector of each name.

    Raises:
        ConfigError: names the first one that does not exist.
    """
    for name in names:
        if name in _SUCCESSORS:
            raise ConfigError(f"connector {name} was removed: use {_SUCCESSORS[name]}")
        if name not in FACTORIES:
            raise ConfigError(f"unknown connector {name!r}; there are {', '.join(FACTORIES)}")


def create(
    names: Sequence[str], *, worker: WorkerId, memory: KVMemory, settings: ConnectorSettings
) -> list[Connector]:
    """Return connectors by name, not started.

    Raises:
        ConfigError: a name is unknown, or a setting that its connector needs is missing.
    """
    require_known(names)
    return [FACTORIES[name](worker, memory, settings) for name in names]
