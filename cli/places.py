"""Paths: Baton's own folder, the shipped model, the folder for logs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

#: The repository, or the installed package `baton`, which has its folders.
ROOT = Path(__file__).resolve().parent.parent
#: What the names of modules begin with: nothing in the repository, `baton.` once installed.
PREFIX = __name__.removesuffix("cli.places")
IS_INSTALLED = bool(PREFIX)
#: How a user calls the command.
COMMAND = "baton" if IS_INSTALLED else "./baton"
SHIPPED_MODEL = ROOT / "models" / "pydoc" / "checkpoint"
SHIPPED_MODEL_NAME = "pydoc"
#: Folders that processes of the repository import from.
IMPORT_ROOTS = (ROOT, ROOT / "proto", ROOT / "client")


def module_name(name: str) -> str:
    """Return what a module of the repository is called here."""
    return f"{PREFIX}{name}"


def python_command(module: str) -> list[str]:
    """Return the command for a module of the repository. -P: nothing is imported from the cwd."""
    return [sys.executable, "-P", "-m", module_name(module)]


def python_environ() -> dict[str, str]:
    """Return the environment for `python_command`. An installed Baton is found without it."""
    if IS_INSTALLED:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in IMPORT_ROOTS)}


def log_folder() -> Path:
    """Return `.run` in the repository, or a folder of this user's own if that is not writable.

    The repository may belong to another user, and `.run` to a run as root. An installed Baton
    writes nothing beside its code.
    """
    own = Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"
    for folder in (own,) if IS_INSTALLED else (ROOT / ".run", own):
        try:
            folder.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="baton-"))
