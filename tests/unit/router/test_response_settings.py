"""Settings of stored responses that contradict others are refused with their flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.router.config import RouterConfig
from services.router.openai.responses_api.stored.open import open_keeper
from services.router.settings.responses import ResponseSettings
from shared.errors import ConfigError

MEMORY = ResponseSettings(responses_store="memory")


def test_a_store_of_one_router_is_for_one_router() -> None:
    RouterConfig(model=Path("m"), responses=MEMORY)
    with pytest.raises(ConfigError, match="--share-ports and --responses-store"):
        RouterConfig(model=Path("m"), responses=MEMORY, share_ports=True, own_grpc_port=0)
    with pytest.raises(ConfigError, match="--router-processes and --responses-store"):
        RouterConfig(model=Path("m"), responses=MEMORY, router_processes=2)


@pytest.mark.parametrize("number", [0, -1, 65])
def test_a_router_has_a_number_of_processes(number: int) -> None:
    with pytest.raises(ConfigError, match=f"must be 1 to 64, not {number}"):
        RouterConfig(model=Path("m"), router_processes=number)


def test_a_store_of_all_routers_needs_one_place() -> None:
    shared = ResponseSettings(responses_store="redis")
    with pytest.raises(ConfigError, match="redis needs --redis-url"):
        RouterConfig(model=Path("m"), responses=shared)
    url = "redis://127.0.0.1:1/0"
    RouterConfig(model=Path("m"), responses=shared, redis_url=url, share_ports=True)


@pytest.mark.parametrize("name", ["entries", "bytes", "age_s", "event_bytes"])
def test_a_store_has_room(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--responses-store-{name.replace('_', '-')} must be"):
        ResponseSettings(**{f"responses_store_{name}": 0})  # type: ignore[arg-type]


async def test_nothing_is_stored_unless_it_is_asked_for() -> None:
    async with open_keeper(ResponseSettings()) as keeper:
        assert keeper is None
    async with open_keeper(MEMORY) as keeper:
        assert keeper is not None
