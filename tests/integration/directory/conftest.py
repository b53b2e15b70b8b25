"""The directory's keys in Redis, and what runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from tests.fakes.directory.redis_side import Side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.directory.redis_server import RedisServer


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    """The directory's keys in an empty Redis."""
    store = RedisStore(open_client(redis_server.url))
    yield store
    await store.close()


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    """Whatever the test runs beside Redis, closed at its end."""
    side = Side()
    yield side
    await side.close()
