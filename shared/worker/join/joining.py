"""Registration of a worker in its directory: Redis, or the one of each router."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shared.directory.base import WorkerLoad
from shared.directory.lease import RedisLease, RemoteLease
from shared.directory.remote import RemoteDirectory
from shared.worker.health.heart import Heart, LoopWatch
from shared.worker.join import membership as settings
from shared.worker.join.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from shared.directory.base import WorkerRecord
    from shared.directory.lease import Lease
    from shared.directory.redis.directory import RedisDirectory
    from shared.identity import WorkerId
    from shared.rpc.auth import ClusterToken
    from shared.rpc.channel import ChannelPool
    from shared.worker.config import WorkerConfig
    from shared.worker.health.gate import RequestGate
    from shared.worker.health.liveness import Watchdog
    from shared.worker.join.membership import HasBlocks
    from shared.worker.parts import WorkerParts

#: Time of delay after which an event loop counts as serving no request.
LOOP_STALL_S = 10.0


@dataclass(frozen=True, slots=True)
class LeaseSource:
    """A directory for a worker, and how the worker renews its lease there."""

    directory: RemoteDirectory | RedisDirectory
    open_lease: Callable[[], Lease]


@dataclass(frozen=True, slots=True)
class Member:
    """What a directory hears of a worker."""

    record: WorkerRecord
    engine: HasBlocks
    #: Called in the heart's thread.
    load: Callable[[], WorkerLoad]
    #: Its changes are reported at once.
    gate: RequestGate | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker's membership of one directory. `task` ends early only if the worker is refused."""

    membership: Membership
    heart: Heart
    task: asyncio.Task[None]


def open_places(
    config: WorkerConfig,
    worker: WorkerId,
    channels: ChannelPool,
    stack: AsyncExitStack,
    *,
    token: ClusterToken | None,
) -> Sequence[LeaseSource]:
    """Open the directories of the settings; the stack closes their connections.

    With a `token`, the worker's record in Redis is sealed with it.

    Raises:
        ConfigError: the URL of Redis is invalid.
    """
    url = config.redis_url
    if url is None:
        return [
            LeaseSource(
                RemoteDirectory(channels.get(address)),
                partial(RemoteLease, worker, partial(channels.blocking, address)),
            )
            for address in config.directory
        ]
    # Redis's client takes a quarter of a second to load, and most clusters have none.
    from shared.directory.redis.directory import RedisDirectory  # noqa: PLC0415
    from shared.directory.redis.seal import RecordSeals  # noqa: PLC0415
    from shared.directory.redis.store import RedisStore  # noqa: PLC0415
    from shared.directory.redis.url import open_client  # noqa: PLC0415

    open_redis = partial(open_client, url, password_file=config.redis_password_file)
    store = RedisStore(open_redis())
    stack.push_async_callback(store.close)
    seals = None if token is None else RecordSeals(token)
    directory = RedisDirectory(store, seals=seals)
    open_lease = partial(RedisLease, worker, lambda: RedisStore(open_redis()), directory)
    return [LeaseSource(directory, open_lease)]


def load_of(parts: WorkerParts, watchdog: Watchdog, loop: LoopWatch) -> WorkerLoad:
    """Return the load for a heartbeat.

    Called in the heart's thread, and correct during a standstill.
    """
    stats = parts.engine.stats()
    return WorkerLoad(
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_free_blocks=stats.num_free_blocks,
        draining=parts.gate.draining,
        adapters=parts.adapters.states(stats),
        max_adapters=parts.adapters.max_adapters,
        max_held_adapters=parts.adapters.max_held,
        preference=parts.roles.preference,
        unhealthy=(bool(parts.gate.unhealthy) or watchdog.bites or loop.late_s() > LOOP_STALL_S),
    )


def member_of(parts: WorkerParts, address: str, watchdog: Watchdog) -> Member:
    """Return what a directory hears of a worker that serves at `address`."""
    loop = LoopWatch(asyncio.get_running_loop())
    return Member(
        parts.record(address), parts.engine, partial(load_of, parts, watchdog, loop), parts.gate
    )


def join(member: Member, place: LeaseSource, stack: AsyncExitStack) -> Joined:
    """Keep the worker in a directory until the stack closes."""
    membership = Membership(
        record=member.record,
        registry=place.directory,
        blocks=place.directory,
        engine=member.engine,
    )
    member.engine.on_cache_change(membership.note)
    heart = Heart(
        place.open_lease,
        load=member.load,
        period_s=settings.HEARTBEAT_S,
        on_beat=membership.on_beat,
    )
    membership.on_registered = heart.beat_soon
    task = asyncio.create_task(membership.run())
    heart.start()
    if member.gate is not None:
        member.gate.on_change(heart.beat_soon)

    async def end() -> None:
        await heart.stop()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    stack.push_async_callback(end)
    return Joined(membership, heart, task)


async def leave(joined: Joined) -> None:
    """Leave the cluster at once, instead of at the end of the lease."""
    # The directory would refuse a heartbeat after the worker has left.
    await joined.heart.stop()
    await joined.membership.leave()


def reason_of(task: asyncio.Task[None]) -> str:
    """Return why a membership has ended."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
