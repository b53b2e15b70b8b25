"""The JSON files of a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path


def read_json(path: Path) -> Any:
    """Return what a file holds. Its texts can be printed, and none of its numbers is NaN.

    Raises:
        ModelLoadError: it cannot be read, or is not valid JSON; names it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant)
        # Halves of surrogate pairs, which no message could name.
        json.dumps(content, ensure_ascii=False).encode()
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    return content


def _constant(name: str) -> float:
    """What Python's JSON has and the standard has not: some configs have an infinite bound."""
    if name == "NaN":
        raise ValueError("it has NaN for a number")
    return float(name)
