"""What a worker is made of, put together from its settings."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, transfer_pb2, worker_pb2
from prometheus_client import CollectorRegistry

from shared.directory.base import WorkerRecord
from shared.identity import Role, WorkerId
from shared.rpc.channel import ChannelPool
from shared.worker.compatibility import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.worker.gate import RequestGate
from shared.worker.peers import PeerBook
from shared.worker.wire import layout_to_wire, offer_to_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.connector.base import Connector
    from shared.engine.engine_thread import EngineThread
    from shared.worker.config import WorkerConfig
