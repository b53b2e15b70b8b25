"""Where things are: the repository, its shipped model, and the folder for logs."""

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
    """How to run one of our modules: -P keeps the user's folder out of the import path."""
    return [sys.executable, "-P", "-m", module]


def python_environ() -> dict[str, str]:
    """The environment for `python_command`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in IMPORT_ROOTS)}


def log_folder() -> Path:
    """`.run` in the repository, or a folder of this user's own where that cannot be written.

    The repository may belong to someone else, and `.run` to a run as root.
    """
    for folder in (ROOT / ".run", Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="baton-"))
