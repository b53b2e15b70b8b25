"""What every client is pointed at: the cluster of the tests beside this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.processes import Cluster


@pytest.fixture
def model(cluster: Cluster) -> str:
    """The model's name."""
    return cluster.model.name


@pytest.fixture(autouse=True)
def _leaves_nothing(cluster: Cluster) -> Iterator[None]:
    """Whatever a client does, no worker keeps anything of it."""
    yield
    cluster.wait_idle()
