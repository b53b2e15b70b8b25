"""The keeper of responses that the router's settings ask for."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.keeper import ResponseKeeper
from services.router.openai.responses_api.stored.memory import MemoryStore
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from services.router.settings.responses import ResponseSettings


@asynccontextmanager
async def open_keeper(
    settings: ResponseSettings,
    *,
    redis_url: str | None = None,
    redis_password_file: Path | None = None,
) -> AsyncGenerator[ResponseKeeper | None]:
    """Give the keeper that the settings ask for; None if responses are not stored.

    Responses that are still being made in the background at the end have failed.

    Raises:
        ConfigError: `redis_url` is not a valid URL.
    """
    limits = StoreLimits(
        max_entries=settings.responses_store_entries,
        max_bytes=settings.responses_store_bytes,
        max_age_s=settings.responses_store_age_s,
        max_event_bytes=settings.responses_store_event_bytes,
    )
    match settings.responses_store:
        case "off":
            yield None
        case "memory":
            async with _running(ResponseKeeper(MemoryStore(limits))) as keeper:
                yield keeper
        case "redis":
            async with _on_redis(limits, redis_url, redis_password_file) as keeper:
                yield keeper


@asynccontextmanager
async def _on_redis(
    limits: StoreLimits, url: str | None, password_file: Path | None
) -> AsyncGenerator[ResponseKeeper]:
    # Redis's client takes a quarter of a second to load, and most clusters have none.
    from services.router.openai.responses_api.stored.redis.board import RedisBoard  # noqa: PLC0415
    from services.router.openai.responses_api.stored.redis.scripts import (  # noqa: PLC0415
        ResponseScripts,
    )
    from services.router.openai.responses_api.stored.redis.store import RedisStore  # noqa: PLC0415
    from shared.directory.redis.url import close_client, open_client  # noqa: PLC0415

    if url is None:
        raise ConfigError("--responses-store redis needs --redis-url")
    client = open_client(url, password_file=password_file)
    scripts = ResponseScripts(client, max_age_s=limits.max_age_s)
    try:
        async with _running(ResponseKeeper(RedisStore(scripts, limits), RedisBoard(scripts))) as it:
            yield it
    finally:
        await close_client(client)


@asynccontextmanager
async def _running(keeper: ResponseKeeper) -> AsyncGenerator[ResponseKeeper]:
    try:
        yield keeper
    finally:
        await keeper.stop()
