"""The JSON files of a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path) -> Any:
    """Return what a file holds.

    Raises:
        ModelLoadError: it cannot be read, or is not valid JSON; names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
