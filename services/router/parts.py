"""The router's parts, made from its settings. Opens no port."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from baton.v1 import lifecycle_pb2_grpc, worker_pb2_grpc
from services.router.admission.admission import Admission
from services.router.admission.cold_start import ColdStart
from services.router.admission.tenant_limits import TenantLimits
from services.router.answer.pipeline import Pipeline
from services.router.answer.planner import AnswerPlanner, LatencyBounds
from services.router.catalogue.pool import LINGER_S, Pool, PoolParts, Served
from services.router.fleet.adapters import FleetAdapters
from services.router.fleet.fleet import Fleet
from services.router.fleet.orders import Orders
from services.router.fleet.roles import FleetRoles
from services.router.models import ServedModels
from services.router.planner.mover import FleetMover
from services.router.planner.open import Boards, open_planner
from services.router.processes.boards import HubBoard
from services.router.processes.entrance import SharedQuotas
from services.router.processes.pool import SharedPool
from services.router.routing.chooser import WorkerChooser
from services.router.routing.policies.find import find_policy
from services.router.routing.room import WorkerRoom
from services.router.vectors.call import PoolCaller
from services.router.vectors.pipeline import VectorPipeline
from services.router.workers.adapters import PoolAdapters
from services.router.workers.canary import Canary
from services.router.workers.control import WorkerControl
from services.router.workers.directory import make_directory
from services.router.workers.endpoints import EndpointPool
from services.router.workers.generations import Generations
from services.router.workers.sessions import SessionPool
from services.router.workers.strangers import report_strangers
from shared.generation.resolver import SamplingResolver
from shared.rpc.channel import ChannelPool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Sequence

    from services.router.admission.entrance import Entrance, Quotas
    from services.router.config import RouterConfig
    from services.router.fleet.orders import LifecycleOrders, WorkerOrders
    from services.router.model_text import ModelText
    from services.router.processes.process import RouterProcess
    from services.router.routing.base import PrefixLookup
    from services.router.routing.book import Book
    from services.router.workers.directory import RouterDirectory
    from shared.directory.base import BlockDirectory, RefusedWorker, WorkerRegistry
    from shared.directory.index import BlockIndex
    from shared.directory.redis.follower import RedisFollower
    from shared.rpc.auth import ClusterToken
    from shared.rpc.tls.files import CertificateFiles

#: Share of the bound on the time to first token.
WORKER_QUEUE_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterParts:
    """The parts of the process, and a pool for each model."""

    registry: WorkerRegistry
    blocks: BlockDirectory
    index: BlockIndex
    #: None without Redis.
    follower: RedisFollower | None
    #: Returns live workers whose records are refused: they get no requests.
    refused: Callable[[], Sequence[RefusedWorker]]
    limits: Quotas
    #: The first one is of the default model.
    pools: tuple[Pool, ...]
    #: The task that follows the directory and the workers' weights; it ends only by a bug.
    following: asyncio.Task[None]

    @property
    def model_names(self) -> list[str]:
        """All names of all models."""
        return [name for pool in self.pools for name in pool.names]

    def usable_workers(self) -> set[str]:
        """Return the ids of the workers that requests may be sent to."""
        return {
            str(endpoint.record.worker)
            for pool in self.pools
            for endpoint in pool.endpoints.everyone()
            if endpoint.usable
        }

    @property
    def num_inside(self) -> int:
        """Requests that were let in and not answered."""
        return sum(pool.admission.num_inside for pool in self.pools)


@asynccontextmanager
async def open_parts(
    config: RouterConfig,
    *,
    token: ClusterToken | None = None,
    certificates: CertificateFiles | None = None,
    linger_s: float = LINGER_S,
    name: str = "router",
    process: RouterProcess | None = None,
) -> AsyncGenerator[RouterParts, None]:
    """Follow the workers of all models for as long as the context is open.

    One model is loaded now. Of several, each is loaded when its first worker joins, and unloaded
    `linger_s` seconds after the last one left.

    `token` is sent with every call to a worker. `certificates` are shown to workers, which must
    show theirs. `name` tells routers of one cluster apart, for people. `process`: this one, if the
    router has several.

    Raises:
        ConfigError: the model's directory cannot be used.
    """
    directory = make_directory(
        config.redis_url, password_file=config.redis_password_file, token=token
    )
    channels = partial(ChannelPool, token=token, certificates=certificates)
    boards = Boards(config, name)
    if process is not None:
        boards = Boards(config, name, alone=partial(HubBoard, process.link))
    pools = _open_pools(config, directory, channels, boards, name, process, linger_s=linger_s)
    parts = RouterParts(
        registry=directory.registry,
        blocks=directory.blocks,
        index=directory.index,
        follower=directory.follower,
        refused=directory.refused,
        limits=TenantLimits() if process is None else SharedQuotas(process.link),
        pools=tuple(pools),
        following=asyncio.create_task(_follow(directory, pools)),
    )
    try:
        yield parts
    finally:
        parts.following.cancel()
        with suppress(asyncio.CancelledError):
            await parts.following
        for pool in pools:
            await pool.close()
        await boards.close()
        await directory.close()


def _open_pools(
    config: RouterConfig,
    directory: RouterDirectory,
    channels: Callable[[], ChannelPool],
    boards: Boards,
    router: str,
    process: RouterProcess | None,
    *,
    linger_s: float,
) -> list[Pool]:
    configs = config.of_models()
    is_alone = len(configs) == 1
    # No adapter of one model may have the name of another one, which requests would get.
    names = frozenset(name for each in configs for name in each.model_names)
    pools = []
    for each in configs:
        parts = _pool_parts(each, directory, channels(), channels(), names, boards, router, process)
        pools.append(
            Pool(
                each,
                parts,
                _serve,
                # A request that waits for a first worker needs the model meanwhile.
                stays=is_alone or parts.cold_start.holds,
                linger_s=linger_s,
            )
        )
    return pools


async def _follow(directory: RouterDirectory, pools: Sequence[Pool]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(directory.follow())
        names = [name for pool in pools for name in pool.names]
        tasks.create_task(report_strangers(directory.registry, names))
        for pool in pools:
            tasks.create_task(pool.run())


def _pool_parts(
    config: RouterConfig,
    directory: RouterDirectory,
    channels: ChannelPool,
    order_channels: ChannelPool,
    model_names: Collection[str],
    boards: Boards,
    router: str,
    process: RouterProcess | None,
) -> PoolParts:
    sessions = SessionPool(channels, stall_s=config.stream_stall_s)
    endpoints = _endpoints(config, directory, Canary(channels, sessions), sessions)
    chooser = _chooser(config, endpoints, directory.index)
    room = _room(config, endpoints, chooser.book)
    shared = None
    if process is not None:
        shared = SharedPool(process, config.model_names[0], endpoints, room, chooser.book)
    admission = _admission(config, endpoints, room) if shared is None else shared.entrance
    chooser.book.on_prompt_end = admission.look
    adapters = _adapters(endpoints, shared)
    fleet = _fleet(model_names, endpoints, order_channels, sessions, admission, adapters, shared)
    cold_start = _cold_start(config, endpoints)
    planner = open_planner(
        config,
        endpoints,
        admission,
        cold_start,
        chooser.book,
        boards,
        FleetMover(fleet, endpoints.everyone),
        router=router,
    )
    return PoolParts(
        channels=channels,
        order_channels=order_channels,
        sessions=sessions,
        endpoints=endpoints,
        control=WorkerControl(endpoints, channels),
        chooser=chooser,
        admission=admission,
        adapters=adapters,
        fleet=fleet,
        cold_start=cold_start,
        planner=planner,
        shared=shared,
    )


def _adapters(endpoints: EndpointPool, shared: SharedPool | None) -> PoolAdapters:
    if shared is None:
        return PoolAdapters(endpoints.everyone)
    adapters = PoolAdapters(endpoints.everyone, tell=shared.tell_adapter)
    shared.on_adapter(adapters.note)
    return adapters


def _cold_start(config: RouterConfig, endpoints: EndpointPool) -> ColdStart:
    return ColdStart(
        endpoints.wait_ready,
        # Requests wait in the queue for workers that sleep.
        lambda: endpoints.is_ready or endpoints.is_asleep,
        longest_s=config.worker_wait_s,
        max_requests=config.max_queued_requests,
    )


def _fleet(
    model_names: Collection[str],
    endpoints: EndpointPool,
    channels: ChannelPool,
    sessions: SessionPool,
    admission: Entrance,
    adapters: PoolAdapters,
    shared: SharedPool | None,
) -> Fleet:
    orders: LifecycleOrders = Orders(channels, lifecycle_pb2_grpc.LifecycleStub)
    to_workers: WorkerOrders = Orders(channels, worker_pb2_grpc.WorkerStub)
    about_adapters = FleetAdapters(endpoints, to_workers, adapters, model_names=model_names)
    about_roles = FleetRoles(endpoints, to_workers)
    return Fleet(
        endpoints,
        orders,
        sessions,
        admission,
        about_adapters,
        about_roles,
        changing=None if shared is None else shared.lock,
        abort_answers=None if shared is None else shared.everywhere(sessions.abort_answers),
    )


def _serve(pool: Pool, text: ModelText) -> Served:
    config, parts = pool.config, pool.parts
    models = ServedModels(
        names=pool.names,
        vocab_size=text.vocab_size,
        learn_max_model_len=parts.endpoints.max_model_len,
        adapters=parts.adapters,
    )
    planner = AnswerPlanner(
        models=models,
        sampling=SamplingResolver(
            text.tokenizer,
            vocab_size=text.vocab_size,
            limits=config.limits,
            logprobs_mode=config.logprobs_mode,
        ),
        chooser=parts.chooser,
        request_timeout_s=config.request_timeout_s,
        bounds=LatencyBounds(max_ttft_ms=config.max_ttft_ms, max_itl_ms=config.max_itl_ms),
        hidden_states=config.hidden_states_policy(text.hidden_size),
        margin=pool.margin,
    )
    pipeline = Pipeline(
        tokenizer=text.tokenizer,
        planner=planner,
        admission=parts.admission,
        book=parts.chooser.book,
        endpoints=parts.endpoints,
        sessions=parts.sessions,
        stream_interval=config.stream_interval,
        embeds=config.embeds_policy,
        replays=pool.replays,
    )
    vectors = VectorPipeline(
        chooser=parts.chooser,
        admission=parts.admission,
        endpoints=parts.endpoints,
        caller=PoolCaller(parts.channels),
        request_timeout_s=config.request_timeout_s,
    )
    return Served(text=text, models=models, planner=planner, pipeline=pipeline, vectors=vectors)


def _endpoints(
    config: RouterConfig, directory: RouterDirectory, canary: Canary, sessions: SessionPool
) -> EndpointPool:
    return EndpointPool(
        directory.registry,
        canary,
        sessions,
        model_names=config.model_names,
        generations=Generations(hold_s=config.identity_hold_s),
    )


def _room(config: RouterConfig, endpoints: EndpointPool, book: Book) -> WorkerRoom:
    return WorkerRoom(
        endpoints.serving,
        book,
        max_worker_queue_ms=_worker_queue_ms(config),
        mode=config.placement,
    )


def _admission(config: RouterConfig, endpoints: EndpointPool, room: WorkerRoom) -> Admission:
    return Admission(config.admission_limits, has_room=room, is_asleep=lambda: endpoints.is_asleep)


def _worker_queue_ms(config: RouterConfig) -> float:
    """Return the bound on a worker's queue.

    If first tokens have a bound, most of it is left to the router's queue, whose order can change.
    """
    if config.max_ttft_ms is None:
        return config.max_worker_queue_ms
    return min(config.max_worker_queue_ms, config.max_ttft_ms * WORKER_QUEUE_SHARE)


def _chooser(
    config: RouterConfig, endpoints: EndpointPool, prefixes: PrefixLookup
) -> WorkerChooser:
    return WorkerChooser(
        endpoints.serving,
        policy=find_policy(config.routing_policy, random.Random()),
        prefixes=prefixes,
        peer_fetch=config.peer_fetch,
        mode=config.placement,
        max_worker_queue_ms=_worker_queue_ms(config),
    )
