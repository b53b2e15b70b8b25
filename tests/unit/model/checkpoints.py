"""Small checkpoints to damage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor


def write(path: Path, **changes: Any) -> Path:
    """A checkpoint of 1 MB."""
    write_random_checkpoint(path, CheckpointSpec(**changes))
    return path


def edit_tensors(path: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of one file."""
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
