"""An API in the same process, and a client for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.fakes.router.openai_api import OpenAIApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def api() -> OpenAIApi:
    return OpenAIApi()


@pytest.fixture
async def http(api: OpenAIApi) -> AsyncIterator[httpx.AsyncClient]:
    # The framework raises bugs again after it has answered, for the server to log.
    transport = httpx.ASGITransport(app=api.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
