"""Streamed responses in the background, with the store in memory."""

from __future__ import annotations

import pytest

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.keeper import ResponseKeeper
from services.router.openai.responses_api.stored.memory import MemoryStore
from tests.suites.router.response_streams import ResponseStreamsSuite

LIMITS = StoreLimits(max_entries=100, max_bytes=1 << 20, max_age_s=60, max_event_bytes=30_000)


class TestStreamsInMemory(ResponseStreamsSuite):
    @pytest.fixture
    def keepers(self) -> tuple[ResponseKeeper, ResponseKeeper]:
        keeper = ResponseKeeper(MemoryStore(LIMITS))
        return keeper, keeper
