"""A worker's connectors, made and started according to its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.address import join_address
from shared.connector.device.staged import StagedConnector
from shared.connector.device.staging_pool import StagingPool
from shared.connector.instrumented import InstrumentedConnector
from shared.connector.packing.rule import PackingMode
from shared.connector.registry import ON_DEVICE, ConnectorSettings, create, require_known
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.line import Line
from shared.connector.unix.runtime_dir import default_runtime_dir
from shared.engine.offload.landings import LandingRefusal
from shared.kv.hand_off import Holder
from shared.kv.memory import KVMemory
from shared.worker.peers.endpoints import Endpoints
from shared.worker.peers.ranks import rank_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from shared.connector.base import Connector
    from shared.connector.instrumented import TransferCounters
    from shared.engine.engine import Engine
    from shared.identity import WorkerId
    from shared.worker.config import WorkerConfig


async def open_connectors(
    config: WorkerConfig,
    worker: WorkerId,
    engine: Engine,
    transfers: TransferCounters,
    stack: AsyncExitStack,
) -> Endpoints:
    """Start all connectors, of each name one per rank; `stack` closes them.

    Raises:
        ConfigError: a connector is unknown, or not available here.
    """
    ranks = [
        await _create_for_rank(config, rank_id(worker, rank), rank, engine, stack)
        for rank in range(len(engine.rank_places))
    ] or [_create_for_device(config, worker, engine, _settings(config, 0), stack)]
    by_name: dict[str, tuple[Connector, ...]] = {}
    for name, created in zip(config.connectors, zip(*ranks, strict=True), strict=True):
        by_name[name] = tuple(InstrumentedConnector(one, observer=transfers) for one in created)
        for connector in by_name[name]:
            await connector.start()
            stack.push_async_callback(connector.close)
    if not all(one.takes_memory for each in by_name.values() for one in each):
        engine.refuse_landings(LandingRefusal.CONNECTOR)
    holder = Holder(engine.layout, engine.kv_split)
    return Endpoints(worker=worker, holder=holder, connectors=by_name)


async def _create_for_rank(
    config: WorkerConfig, own: WorkerId, rank: int, engine: Engine, stack: AsyncExitStack
) -> list[Connector]:
    """Return a rank's connectors: of its memory, or of the process that has it.

    That process chooses its host's addresses and folders. If the connection to it is lost, so is
    the group: what peers write then cannot be stopped from here.
    """
    place, settings = engine.rank_places[rank], _settings(config, rank)
    if isinstance(place, KVMemory):
        return create(config.connectors, worker=own, memory=place, settings=settings)
    require_known(config.connectors)
    line = Line(place, on_lost=engine.lose_rank)
    await line.open()
    stack.push_async_callback(line.close)
    settings = replace(settings, runtime_dir=config.runtime_dir)
    return [
        RemoteConnector(line, name, worker=own, settings=settings) for name in config.connectors
    ]


def _settings(config: WorkerConfig, rank: int) -> ConnectorSettings:
    """Return a rank's settings: fixed ports are those of the first rank, the others' follow."""
    port, advertised = config.transfer_port, config.advertise_transfer_port
    return ConnectorSettings(
        runtime_dir=config.runtime_dir or default_runtime_dir(),
        endpoint=f"tcp://{join_address(config.host, port and port + rank)}",
        advertise_host=config.reachable_host,
        advertise_port=advertised and advertised + rank,
        encrypt=config.encrypts_transfers,
        packing=PackingMode(config.transfer_packing),
    )


def _create_for_device(
    config: WorkerConfig,
    worker: WorkerId,
    engine: Engine,
    settings: ConnectorSettings,
    stack: AsyncExitStack,
) -> list[Connector]:
    """Return connectors that read the blocks on the device, and others with staging on the host."""
    staged = [name for name in config.connectors if name not in ON_DEVICE]
    by_way_of_host: Iterator[Connector] = iter(())
    if staged:
        layout = engine.layout
        staging = engine.stage_kv(
            max(
                config.transfer_staging_bytes // layout.block_bytes,
                layout.num_blocks(engine.max_model_len),
            )
        )
        stack.callback(staging.close)
        pool = StagingPool(staging.memory.num_blocks)
        inner = create(staged, worker=worker, memory=staging.memory, settings=settings)
        by_way_of_host = (StagedConnector(one, pool, staging) for one in inner)
    return [
        ON_DEVICE[name](worker, engine.device_kv(), settings)
        if name in ON_DEVICE
        else next(by_way_of_host)
        for name in config.connectors
    ]
