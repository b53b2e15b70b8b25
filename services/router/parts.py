"""The router's parts, made from its settings. Opens no port."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.admission.admission import Admission, AdmissionLimits
from services.router.admission.tenant_limits import TenantLimits
from services.router.answer.pipeline import Pipeline
from services.router.answer.planner import AnswerPlanner, LatencyBounds
from services.router.fleet.fleet import Fleet
from services.router.fleet.orders import Orders
from services.router.model_text import load_text
from services.router.models import ServedModels
from services.router.routing.chooser import WorkerChooser
from services.router.routing.policies.find import find_policy
from services.router.routing.room import WorkerRoom
from services.router.vectors.call import PoolCaller
from services.router.vectors.pipeline import VectorPipeline
from services.router.workers.canary import Canary
from services.router.workers.control import WorkerControl
from services.router.workers.directory import make_directory
from services.router.workers.endpoints import EndpointPool
from services.router.workers.generations import Generations
from services.router.workers.sessions import SessionPool
from shared.generation.resolver import SamplingResolver
from shared.rpc.channel import ChannelPool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from services.router.config import RouterConfig
    from services.router.parsers.plan import ChatFormats
    from services.router.routing.base import PrefixLookup
    from services.router.workers.directory import RouterDirectory
    from shared.directory.base import BlockDirectory, RefusedWorker, WorkerRegistry
    from shared.directory.index import BlockIndex
    from shared.directory.redis.follower import RedisFollower
    from shared.rpc.auth import ClusterToken
    from shared.rpc.tls.files import CertificateFiles
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

#: Share of the bound on the time to first token.
WORKER_QUEUE_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterParts:
    """The parts that the front ends and the directory's servicer need."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    formats: ChatFormats
    models: ServedModels
    registry: WorkerRegistry
    blocks: BlockDirectory
    index: BlockIndex
    #: None without Redis.
    follower: RedisFollower | None
    #: Returns live workers whose records are refused: they get no requests.
    refused: Callable[[], Sequence[RefusedWorker]]
    endpoints: EndpointPool
    control: WorkerControl
    fleet: Fleet
    admission: Admission
    planner: AnswerPlanner
    limits: TenantLimits
    pipeline: Pipeline
    vectors: VectorPipeline
    #: The task that follows the directory and the workers' weights; it ends only by a bug.
    following: asyncio.Task[None]


@asynccontextmanager
async def open_parts(
    config: RouterConfig,
    *,
    token: ClusterToken | None = None,
    certificates: CertificateFiles | None = None,
) -> AsyncGenerator[RouterParts, None]:
    """Load the tokenizer and follow the workers for as long as the context is open.

    `token` is sent with every call to a worker. `certificates` are shown to workers, which must
    show theirs.

    Raises:
        ConfigError: the model's directory cannot be used.
    """
    channels = ChannelPool(token=token, certificates=certificates)
    order_channels = ChannelPool(token=token, certificates=certificates)
    sessions = SessionPool(channels, stall_s=config.stream_stall_s)
    directory = make_directory(
        config.redis_url, password_file=config.redis_password_file, token=token
    )
    parts = _build(config, channels, Orders(order_channels), sessions, directory)
    try:
        yield parts
    finally:
        parts.following.cancel()
        with suppress(asyncio.CancelledError):
            await parts.following
        await sessions.close()
        await order_channels.close()
        await channels.close()
        await directory.close()


async def _follow(directory: RouterDirectory, endpoints: EndpointPool, fleet: Fleet) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fleet.keep_up())
        tasks.create_task(directory.follow())
        tasks.create_task(endpoints.run())


def _build(
    config: RouterConfig,
    channels: ChannelPool,
    orders: Orders,
    sessions: SessionPool,
    directory: RouterDirectory,
) -> RouterParts:
    text = load_text(config)
    canary = Canary(channels, sessions)
    endpoints = _endpoints(config, directory, canary, sessions)
    models = ServedModels(
        names=config.model_names,
        vocab_size=text.vocab_size,
        learn_max_model_len=endpoints.max_model_len,
    )
    chooser = _chooser(config, endpoints, directory.index)
    admission = _admission(config, endpoints, chooser)
    fleet = Fleet(endpoints, orders, sessions, admission)
    planner = _planner(config, models, text.tokenizer, chooser)
    pipeline = Pipeline(
        tokenizer=text.tokenizer,
        planner=planner,
        admission=admission,
        book=chooser.book,
        endpoints=endpoints,
        sessions=sessions,
        stream_interval=config.stream_interval,
        embeds=config.embeds_policy,
    )
    return RouterParts(
        tokenizer=text.tokenizer,
        chat_template=text.chat_template,
        formats=text.formats,
        models=models,
        registry=directory.registry,
        blocks=directory.blocks,
        index=directory.index,
        follower=directory.follower,
        refused=directory.refused,
        endpoints=endpoints,
        control=WorkerControl(endpoints, channels),
        fleet=fleet,
        admission=admission,
        planner=planner,
        limits=TenantLimits(),
        pipeline=pipeline,
        vectors=_vectors(config, channels, endpoints, admission, chooser),
        following=asyncio.create_task(_follow(directory, endpoints, fleet)),
    )


def _vectors(
    config: RouterConfig,
    channels: ChannelPool,
    endpoints: EndpointPool,
    admission: Admission,
    chooser: WorkerChooser,
) -> VectorPipeline:
    return VectorPipeline(
        chooser=chooser,
        admission=admission,
        endpoints=endpoints,
        caller=PoolCaller(channels),
        request_timeout_s=config.request_timeout_s,
    )


def _planner(
    config: RouterConfig, models: ServedModels, tokenizer: Tokenizer, chooser: WorkerChooser
) -> AnswerPlanner:
    return AnswerPlanner(
        models=models,
        sampling=SamplingResolver(
            tokenizer,
            vocab_size=models.vocab_size,
            limits=config.limits,
            logprobs_mode=config.logprobs_mode,
        ),
        chooser=chooser,
        request_timeout_s=config.request_timeout_s,
        bounds=LatencyBounds(max_ttft_ms=config.max_ttft_ms, max_itl_ms=config.max_itl_ms),
    )


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


def _admission(config: RouterConfig, endpoints: EndpointPool, chooser: WorkerChooser) -> Admission:
    limits = AdmissionLimits(
        max_concurrent_requests=config.max_concurrent_requests,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        max_queue_s=config.max_queue_s,
    )
    room = WorkerRoom(endpoints.of_role, chooser.book, max_worker_queue_ms=_worker_queue_ms(config))
    admission = Admission(limits, has_room=room)
    chooser.book.on_prompt_end = admission.look
    return admission


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
        endpoints.of_role,
        policy=find_policy(config.routing_policy, random.Random()),
        prefixes=prefixes,
        peer_fetch=config.peer_fetch,
        max_worker_queue_ms=_worker_queue_ms(config),
    )
