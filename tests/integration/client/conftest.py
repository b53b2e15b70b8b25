"""A scripted router behind a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from baton_client import AsyncBaton, RetryPolicy
from tests.fakes.scripted.router import ScriptedRouter, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAST_RETRY = RetryPolicy(max_attempts=3, base_delay_s=0.01, max_delay_s=0.5)


@pytest.fixture
async def router() -> ScriptedRouter:
    return ScriptedRouter()


@pytest.fixture
async def address(router: ScriptedRouter) -> AsyncIterator[str]:
    server, port = await serve(router, "127.0.0.1:0")
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncBaton]:
    async with AsyncBaton(address, retry=FAST_RETRY, timeout_s=20) as client:
        yield client
