"""A Redis for the whole tier, emptied before each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.directory.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


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
