"""One model: its workers, and what its requests need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.answer.ttft_margin import TtftMargin

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.admission.admission import Admission
    from services.router.answer.pipeline import Pipeline
    from services.router.answer.planner import AnswerPlanner
    from services.router.config import RouterConfig
    from services.router.fleet.fleet import Fleet
    from services.router.model_text import ModelText
    from services.router.models import ServedModels
    from services.router.openai.backend import Backend
    from services.router.routing.chooser import WorkerChooser
    from services.router.workers.control import WorkerControl
    from services.router.workers.endpoints import EndpointPool
    from services.router.workers.sessions import SessionPool
    from shared.rpc.channel import ChannelPool


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """What requests of a model need while it is loaded. Requests that run keep it."""

    text: ModelText
    models: ServedModels
    planner: AnswerPlanner
    pipeline: Pipeline
    #: Made for the first request.
    backend: Backend | None = None


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
    admission: Admission
    fleet: Fleet


class Pool:
    """The workers of one model. Its books, metrics and workers stay when the model is unloaded."""

    def __init__(
        self, config: RouterConfig, parts: PoolParts, serve: Callable[[Pool], Served]
    ) -> None:
        """Make a pool. `config`: the router's settings with the model's own in their places.

        `serve` reads the model's files and returns what requests need; it takes long.
        """
        self.config = config
        self.names = config.model_names
        self.parts = parts
        self.endpoints = parts.endpoints
        self.admission = parts.admission
        #: Number of replays on another worker, by reason.
        self.replays: Counter[str] = Counter()
        self.margin = TtftMargin()
        self.served: Served | None = serve(self)

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.names[0]

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        return self.endpoints.is_ready

    def not_ready_because(self) -> list[str]:
        """Return what is missing before a request can be served; empty if ready."""
        return self.endpoints.not_ready_because()

    def notes(self) -> list[str]:
        """Return the parts that are missing though requests can be served."""
        return self.endpoints.notes()

    async def close(self) -> None:
        """End the calls to the workers, and close the connections."""
        await self.parts.sessions.close()
        await self.parts.order_channels.close()
        await self.parts.channels.close()
