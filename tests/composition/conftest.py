"""Models that all rows share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.composition.settings import Models

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Checkpoints, drafts and engines."""
    made = Models(tmp_path_factory.mktemp("composition"))
    yield made
    made.close()
