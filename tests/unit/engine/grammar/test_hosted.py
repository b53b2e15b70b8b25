"""A grammar in a process of its own behaves like one of the backend's, whichever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.suites.grammar import GrammarSuite
from tests.unit.engine.grammar.hosting import HostedBackend, make_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.grammar.registry import BackendName
    from shared.text.token_table import TokenTable


@pytest.fixture(scope="module")
def hosted(backend_name: BackendName, table: TokenTable) -> Iterator[HostedBackend]:
    hosts = make_hosts(backend_name, table)
    yield HostedBackend(hosts)
    hosts.close()


class TestHosted(GrammarSuite):
    @pytest.fixture
    def backend(self, hosted: HostedBackend) -> HostedBackend:
        return hosted
