"""A folder of small checkpoints with random weights, one for each name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.random_checkpoint import write_random_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.random_checkpoint import CheckpointSpec


def write_checkpoints(folder: Path, specs: Mapping[str, CheckpointSpec]) -> Path:
    """Write each into the folder of its name; return `folder`."""
    for name, spec in specs.items():
        write_random_checkpoint(folder / name, spec)
    return folder
