"""The store of responses in memory: what it finds, and what it removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.memory import MemoryStore
from tests.suites.router.response_store import Clock, ResponseStoreSuite

if TYPE_CHECKING:
    from tests.suites.router.response_store import MakeStore


class TestMemoryStore(ResponseStoreSuite):
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def make(self, clock: Clock) -> MakeStore:
        def make(
            *,
            entries: int = 100,
            num_bytes: int = 1000,
            age_s: float = 60,
            event_bytes: int = 500,
        ) -> MemoryStore:
            limits = StoreLimits(
                max_entries=entries,
                max_bytes=num_bytes,
                max_age_s=age_s,
                max_event_bytes=event_bytes,
            )
            return MemoryStore(limits, clock_s=clock)

        return make
