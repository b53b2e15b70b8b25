"""Checkpoints that are written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.pooling import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Return the folder of a checkpoint, which no test changes, and transformers' model."""
    known: dict[str, tuple[Path, Any]] = {}

    def make(name: str) -> tuple[Path, Any]:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = folder, checkpoints.write(folder, name)
        return known[name]

    return make
