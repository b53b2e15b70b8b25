"""What a worker is made of, put together from its settings."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, transfer_pb2, worker_pb2
from prometheus_client import CollectorRegistry

from shared import __version__
from shared.directory.base import WorkerRecord
from shared.identity import Role, WorkerId
from shared.rpc.channel import ChannelPool
from shared.worker.compatibility import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.worker.gate import RequestGate
from shared.worker.metrics import EngineCollector
from shared.worker.peers import PeerBook
from shared.worker.wire import layout_to_wire, offer_to_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.connector.base import Connector
    from shared.engine.engine_thread import EngineThread
    from shared.kv.layout import KVLayout
    from shared.worker.config import WorkerConfig

_WIRE_ROLES = {
    Role.PREFILL: common_pb2.ROLE_PREFILL,
    Role.DECODE: common_pb2.ROLE_DECODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Everything that the services of a worker use. Closed by `open_parts`."""

    config: WorkerConfig
    role: Role
    worker: WorkerId
    engine: EngineThread
    layout: KVLayout
    max_model_len: int
    connectors: Sequence[Connector]
    channels: ChannelPool
    peers: PeerBook
    peer_info: transfer_pb2.PeerInfo
    gate: RequestGate
    metrics: CollectorRegistry

    def record(self, address: str) -> WorkerRecord:
        """What the directory is told."""
        return WorkerRecord(
            worker=self.worker,
            role=self.role,
            address=address,
            model=self.config.model.name,
            namespace=self.peer_info.namespace,
            block_size=self.layout.block_size,
            num_blocks=self.engine.stats().num_blocks,
            max_model_len=self.max_model_len,
        )

    def describe(self) -> worker_pb2.GetInfoResponse:
        """What anybody may know."""
        return worker_pb2.GetInfoResponse(
            role=_WIRE_ROLES[self.role],
            model=self.config.model.name,
            peer=self.peer_info,
            num_blocks=self.engine.stats().num_blocks,
            max_model_len=self.max_model_len,
            software_version=__version__,
        )
