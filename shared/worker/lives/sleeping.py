"""A life without an engine: the worker only takes orders, and its directory knows that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from shared.directory.base import STAGE, WorkerLoad
from shared.engine.engine_stats import EngineStats
from shared.identity import WorkerId
from shared.kv.identity import model_identity
from shared.rpc.channel import ChannelPool
from shared.worker.join.joining import Member, join, leave, open_places
from shared.worker.lifecycle.lifecycle import Life
from shared.worker.lifecycle.stage import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.directory.base import WorkerRecord
    from shared.kv.change_log import CacheChange
    from shared.kv.tier import BlockTier
    from shared.worker.lives.site import LastLife, Site

log = structlog.get_logger(__name__)


class NoBlocks:
    """See `HasBlocks`."""

    def on_cache_change(self, callback: Callable[[CacheChange], None]) -> None:
        """Never call back."""

    async def tier_snapshots(
        self, at_cut: Callable[[], None] | None = None
    ) -> dict[BlockTier, list[bytes]]:
        """Return nothing."""
        if at_cut is not None:
            at_cut()
        return {}


async def sleep_life(site: Site, last: LastLife) -> Ending:
    """Take orders until one, or a signal, ends this life."""
    worker = WorkerId.born(site.config.name)
    async with AsyncExitStack() as stack:
        channels = ChannelPool(token=site.token, certificates=site.certificates)
        stack.push_async_callback(channels.close)
        load = _load(site)
        member = Member(_record(worker, site, last), NoBlocks(), lambda: load)
        places = open_places(site.config, worker, channels, stack, token=site.token)
        joined = [join(member, place, stack) for place in places]
        log.info("asleep", worker=str(worker), stage=site.lifecycle.stage.value)
        site.lifecycle.arrived(Life(worker))
        orders = asyncio.create_task(site.lifecycle.turning.wait())
        stopped = asyncio.create_task(site.stopping.wait())
        await asyncio.wait({orders, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (orders, stopped):
            task.cancel()
        await asyncio.gather(*(leave(one) for one in joined))
    return Ending.STOPPED if site.stopping.is_set() else Ending.TURNED


def _load(site: Site) -> WorkerLoad:
    """Return what a directory hears: it takes no work, and its adapters keep their names."""
    return WorkerLoad(
        draining=True,
        adapters=site.adapters.states(EngineStats()),
        max_adapters=site.adapters.max_adapters,
        max_held_adapters=site.adapters.max_held,
        preference=site.preference.role,
    )


def _record(worker: WorkerId, site: Site, last: LastLife) -> WorkerRecord:
    """Return the record of a sleeping worker: that of its last life with an engine, renamed."""
    cycle = site.lifecycle
    identity = last.record.identity
    if cycle.weights is not None:
        identity = model_identity(cycle.weights.loaded.fingerprint, last.kv_format).hex()
    return replace(
        last.record,
        worker=worker,
        identity=identity,
        generation=cycle.source.generation,
        labels=cycle.source.labels | {STAGE: cycle.stage.value},
    )
