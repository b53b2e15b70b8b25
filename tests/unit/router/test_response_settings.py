"""Settings of stored responses that contradict others are refused with their flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.router.config import RouterConfig
from services.router.openai.responses_api.stored.keeper import open_keeper
from services.router.response_settings import ResponseSettings
from shared.errors import ConfigError

MEMORY = ResponseSettings(responses_store="memory")


def test_a_store_of_one_router_is_for_one_router() -> None:
    RouterConfig(model=Path("m"), responses=MEMORY)
    with pytest.raises(ConfigError, match="--share-ports and --responses-store"):
        RouterConfig(model=Path("m"), responses=MEMORY, share_ports=True, own_grpc_port=0)


@pytest.mark.parametrize("name", ["entries", "bytes", "age_s"])
def test_a_store_has_room(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--responses-store-{name.replace('_', '-')} must be"):
        ResponseSettings(**{f"responses_store_{name}": 0})  # type: ignore[arg-type]


async def test_nothing_is_stored_unless_it_is_asked_for() -> None:
    async with open_keeper(ResponseSettings()) as keeper:
        assert keeper is None
    async with open_keeper(MEMORY) as keeper:
        assert keeper is not None
