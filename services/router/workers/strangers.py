"""Workers of models that the router does not serve."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import structlog

from services.router.workers.endpoints import REGISTRY_RETRY_S
from shared.directory.base import RegistryChange
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from shared.directory.base import RegistryEvent, WorkerRegistry

log = structlog.get_logger(__name__)


async def report_strangers(registry: WorkerRegistry, model_names: Collection[str]) -> None:
    """Log each worker that joins with another model, until cancelled: it gets no requests."""
    while True:
        try:
            events = cast("AsyncGenerator[RegistryEvent]", registry.watch())
            async with aclosing(events):
                async for event in events:
                    record = event.record
                    if event.change is RegistryChange.JOINED and record.model not in model_names:
                        log.warning("other_model", worker=str(record.worker), model=record.model)
        except (BatonError, OSError):
            # The pools log that the registry is lost.
            pass
        await asyncio.sleep(REGISTRY_RETRY_S)
