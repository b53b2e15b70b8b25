"""Engines with tiers, closed at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.fakes.offload import make_tiered_engine

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
