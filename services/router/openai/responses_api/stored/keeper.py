"""What the endpoints of the Responses API share where responses are stored."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.memory import MemoryStore, StoreLimits
from services.router.openai.responses_api.stored.runs import BackgroundRuns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.openai.responses_api.stored.base import ResponseStore
    from services.router.response_settings import ResponseSettings


class ResponseKeeper:
    """A store, and the responses in the background that are written to it."""

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self.runs = BackgroundRuns()

    async def stop(self) -> None:
        """End the responses in the background as failed, and begin no more."""
        await self.runs.stop()


@asynccontextmanager
async def open_keeper(settings: ResponseSettings) -> AsyncGenerator[ResponseKeeper | None]:
    """Give the keeper that the settings ask for; None if responses are not stored.

    Responses that are still being made in the background at the end have failed.
    """
    if settings.responses_store == "off":
        yield None
        return
    limits = StoreLimits(
        max_entries=settings.responses_store_entries,
        max_bytes=settings.responses_store_bytes,
        max_age_s=settings.responses_store_age_s,
    )
    keeper = ResponseKeeper(MemoryStore(limits))
    try:
        yield keeper
    finally:
        await keeper.stop()
