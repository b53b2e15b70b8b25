"""A Redis for the whole folder, emptied before each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from tests.fakes.redis_server import RedisServer
from tests.fakes.redis_side import Side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="session")
def common_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One process for all tests that do not break it."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(common_redis: RedisServer) -> RedisServer:
    """An empty Redis."""
    with common_redis.client() as client:
        client.flushall()
    return common_redis


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
