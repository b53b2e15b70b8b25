"""A router of one model, with all of its parts in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.admission.entrance import Entrance, Quotas
    from services.router.answer.pipeline import Pipeline
    from services.router.answer.planner import AnswerPlanner
    from services.router.catalogue.pool import Served
    from services.router.fleet.fleet import Fleet
    from services.router.models import ServedModels
    from services.router.parsers.plan import ChatFormats
    from services.router.parts import RouterParts
    from services.router.workers.endpoints import EndpointPool
    from shared.directory.base import BlockDirectory, WorkerRegistry
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer


class OnePool:
    """The parts of the process, of its pool, and of the pool's model, which is loaded."""

    def __init__(self, router: RouterParts) -> None:
        self.router = router
        [self.pool] = router.pools
        served: Served | None = self.pool.served
        assert served is not None
        self.served = served
        self.registry: WorkerRegistry = router.registry
        self.blocks: BlockDirectory = router.blocks
        self.limits: Quotas = router.limits
        self.endpoints: EndpointPool = self.pool.endpoints
        self.admission: Entrance = self.pool.admission
        self.fleet: Fleet = self.pool.parts.fleet
        self.tokenizer: Tokenizer = served.text.tokenizer
        self.chat_template: ChatTemplate = served.text.chat_template
        self.formats: ChatFormats = served.text.formats
        self.models: ServedModels = served.models
        self.planner: AnswerPlanner = served.planner
        self.pipeline: Pipeline = served.pipeline
