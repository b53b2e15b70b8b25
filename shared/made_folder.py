"""A folder that is made once and then only read, in Baton's cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def cache_dir() -> Path:
    """Return the folder of what Baton makes once.

    It is that of compiled kernels, too, which a router has not.
    """
    own = os.environ.get("BATON_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "baton"


def make_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder, unless it is there: whole, or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    if folder.exists():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            write(made)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        if not folder.exists():  # another process may have written it meanwhile
            raise ConfigError(
                f"cannot write {folder}: {error}; set BATON_CACHE_DIR to a folder for it"
            ) from error
