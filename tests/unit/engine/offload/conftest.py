"""Engines with tiers, closed at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.engine.engines import make_engine
from tests.fakes.engine.offload import make_tiered_engine
from tests.unit.engine.offload.crowd import NUM_BLOCKS, Crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.engine.engine import Engine


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def start(**settings: object) -> Engine:
        engines.append(make_tiered_engine(**({"num_blocks": 10} | settings)))  # type: ignore[arg-type]
        return engines[-1]

    with ExitStack() as stack:
        yield start
        for engine in engines:
            stack.callback(engine.close)


@pytest.fixture(scope="module")
def sender() -> Iterator[Engine]:
    engine = make_engine()
    yield engine
    engine.close()


@pytest.fixture
def crowd(make: Callable[..., Engine], sender: Engine) -> Callable[..., Crowd]:
    def begin(**settings: Any) -> Crowd:
        usual = {"num_blocks": NUM_BLOCKS, "host_blocks": 40}
        return Crowd(make(**(usual | settings)), sender)

    return begin
