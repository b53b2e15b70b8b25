"""Paths: the repository, its shipped model, the folder for logs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED_MODEL = ROOT / "models" / "pydoc" / "checkpoint"
SHIPPED_MODEL_NAME = "pydoc"
#: Folders that Baton's processes import from.
IMPORT_ROOTS = (ROOT, ROOT / "proto", ROOT / "client")


def python_command(module: str) -> list[str]:
    """Return the command for one of our modules; -P takes the user's folder off the import path."""
    return [sys.executable, "-P", "-m", module]


def python_environ() -> dict[str, str]:
    """Return the environment for `python_command`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in IMPORT_ROOTS)}


def log_folder() -> Path:
    """Return `.run` in the repository, or a folder of this user's own if that is not writable.

    The repository may belong to another user, and `.run` to a run as root.
    """
    for folder in (ROOT / ".run", Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="baton-"))
