"""The suite of hand-offs between groups of ranks on every connector that carries parts."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.connector.harnesses import (
    LocalHarness,
    NixlHarness,
    ShmHarness,
    ZmqHarness,
)
from tests.suites.connector.group_transfer import CASES, GroupSuite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.suites.connector.harness import Harness


class TestLocal(GroupSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return LocalHarness()

    def cases(self) -> Sequence[tuple[int, int, int]]:
        return CASES if len(CASES) > 40 else CASES[::5]


class TestZmq(GroupSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return ZmqHarness()


class TestShm(GroupSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        with tempfile.TemporaryDirectory() as folder:
            yield ShmHarness(Path(folder))


class TestNixl(GroupSuite):
    """Each connection takes two agents, so that few of the sizes are tried."""

    copies = False

    @pytest.fixture
    def harness(self) -> Harness:
        # Not importorskip: an import of its own changes what the process logs.
        if find_spec("nixl") is None:
            pytest.skip("the extra `nixl` is missing")
        return NixlHarness()

    def cases(self) -> Sequence[tuple[int, int, int]]:
        return CASES if len(CASES) > 40 else [(1, 3, 2), (4, 2, 8)]

    def formats(self) -> Sequence[tuple[str, tuple[int, int]]]:
        return super().formats()[:1]
