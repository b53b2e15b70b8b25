"""A grammar behaves the same wherever it is followed, and whichever backend it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.suites.engine.grammar import GrammarSuite
from tests.unit.engine.grammar.hosting import ALL_HERE, NONE_HERE, PlacedBackend, make_placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.grammar.cost import GrammarCost
    from shared.engine.settings.choices import BackendName
    from shared.text.token_table import TokenTable


@pytest.fixture(scope="module", params=[ALL_HERE, NONE_HERE], ids=["here", "hosted"])
def placed(
    backend_name: BackendName, table: TokenTable, request: pytest.FixtureRequest
) -> Iterator[PlacedBackend]:
    limits: GrammarCost = request.param
    placement = make_placement(backend_name, table, limits=limits)
    yield PlacedBackend(placement.place)
    placement.close()


class TestPlaced(GrammarSuite):
    @pytest.fixture
    def backend(self, placed: PlacedBackend) -> PlacedBackend:
        return placed
