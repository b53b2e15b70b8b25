"""One model: its workers, and what its requests need."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from services.router.answer.ttft_margin import TtftMargin
from services.router.catalogue.memory import give_back
from services.router.model_text import load_text
from shared.errors import ConfigError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.admission.cold_start import ColdStart
    from services.router.admission.entrance import Entrance
    from services.router.answer.pipeline import Pipeline
    from services.router.answer.planner import AnswerPlanner
    from services.router.config import RouterConfig
    from services.router.fleet.fleet import Fleet
    from services.router.model_text import ModelText
    from services.router.models import ServedModels
    from services.router.planner.loop import PlannerLoop
    from services.router.processes.pool import SharedPool
    from services.router.routing.chooser import WorkerChooser
    from services.router.vectors.pipeline import VectorPipeline
    from services.router.workers.adapters import PoolAdapters
    from services.router.workers.control import WorkerControl
    from services.router.workers.endpoints import EndpointPool
    from services.router.workers.sessions import SessionPool
    from shared.rpc.channel import ChannelPool


log = structlog.get_logger(__name__)

#: Time without a worker after which a model is unloaded.
LINGER_S = 10.0
#: Time between two attempts to read files that cannot be used.
RETRY_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Served:
    """What requests of a model need while it is loaded. Requests that run keep its parts."""

    text: ModelText
    models: ServedModels
    planner: AnswerPlanner
    pipeline: Pipeline
    vectors: VectorPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """The parts of a pool that are there whether or not its model is loaded."""

    channels: ChannelPool
    #: Of orders alone: see `Orders`.
    order_channels: ChannelPool
    sessions: SessionPool
    endpoints: EndpointPool
    control: WorkerControl
    chooser: WorkerChooser
    admission: Entrance
    adapters: PoolAdapters
    fleet: Fleet
    cold_start: ColdStart
    #: None: it is off.
    planner: PlannerLoop | None = None
    #: None: the router has one process.
    shared: SharedPool | None = None


class Pool:
    """The workers of one model, and the model while it has workers.

    Books, metrics and limits stay when the model is unloaded: they are small.
    """

    def __init__(
        self,
        config: RouterConfig,
        parts: PoolParts,
        serve: Callable[[Pool, ModelText], Served],
        *,
        stays: bool,
        linger_s: float = LINGER_S,
    ) -> None:
        """Make a pool. `config`: the router's settings with the model's own in their places.

        `serve` returns what requests need, made of the model's files. `stays`: the model is loaded
        now, and never unloaded. `linger_s`: time without a worker before it is.

        Raises:
            ConfigError: the model stays, and its files cannot be used.
        """
        self.config = config
        self.names = config.model_names
        self.parts = parts
        self.endpoints = parts.endpoints
        self.admission = parts.admission
        #: Number of replays on another worker, by reason.
        self.replays: Counter[str] = Counter()
        self.margin = TtftMargin()
        #: Why the model's files cannot be used; empty unless that was tried and failed.
        self.problem = ""
        self._serve = serve
        self._stays = stays
        self._linger_s = linger_s
        #: None while the model is not loaded.
        self.served = serve(self, load_text(config)) if stays else None

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.names[0]

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        return self.served is not None and self.endpoints.is_ready

    @property
    def takes_requests(self) -> bool:
        """Whether a request would be served now, or held until it can be."""
        return self.is_ready or (self.served is not None and self.parts.cold_start.holds)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place, or for a first worker."""
        return self.admission.num_queued + self.parts.cold_start.num_waiting

    @property
    def has_workers(self) -> bool:
        """Whether a worker is alive, usable or not."""
        return any(self.endpoints.of_role(role) for role in Role)

    def not_ready_because(self) -> list[str]:
        """Return what is missing before a request is taken; empty if it would be."""
        if self.takes_requests:
            return []
        found = self.endpoints.not_ready_because()
        if self.served is None and self.has_workers:
            found.insert(0, self.problem or "its files are being read")
        return found

    def notes(self) -> list[str]:
        """Return the parts that are missing though requests can be served."""
        if not self.is_ready and self.takes_requests:
            wait_s = self.parts.cold_start.longest_s
            return [f"no decode worker is ready: requests wait for one, up to {wait_s:g} s"]
        return self.endpoints.notes()

    async def run(self) -> None:
        """Follow the workers, and load and unload the model, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.parts.fleet.keep_up())
            tasks.create_task(self.endpoints.run())
            if self.parts.planner is not None:
                tasks.create_task(self.parts.planner.run())
            if self.parts.shared is not None:
                tasks.create_task(self.parts.shared.run())
            if not self._stays:
                tasks.create_task(self._load_and_unload())

    async def close(self) -> None:
        """End the calls to the workers, and close the connections."""
        await self.parts.sessions.close()
        await self.parts.order_channels.close()
        await self.parts.channels.close()

    async def _load_and_unload(self) -> None:
        while True:
            await self.endpoints.wait_until(lambda: self.has_workers)
            if not await self._load():
                await asyncio.sleep(RETRY_S)
                continue
            while self.has_workers:
                await self.endpoints.wait_until(lambda: not self.has_workers)
                # A worker that starts again comes back within this time.
                await asyncio.sleep(self._linger_s)
            self._unload()

    async def _load(self) -> bool:
        """Read the model's files beside the event loop; return whether they can be used."""
        try:
            text = await asyncio.to_thread(load_text, self.config)
        except (ConfigError, OSError) as error:
            if self.problem != str(error):
                log.error("model_unusable", model=self.name, error=str(error))
            self.problem = str(error)
            return False
        self.problem = ""
        self.served = self._serve(self, text)
        log.info("model_loaded", model=self.name)
        self.endpoints.wake()
        return True

    def _unload(self) -> None:
        """Drop what requests need; those that still run keep it until they end."""
        self.served = None
        give_back()
        log.info("model_unloaded", model=self.name)
        self.endpoints.wake()
