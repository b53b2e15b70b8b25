"""A folder for each run of a cluster, so that runs do not share logs."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from cli.errors import CommandError
from cli.places import log_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Number of old runs whose folders are kept, besides running ones.
KEPT_RUNS = 10
#: Link to the folder of the last started run.
LATEST = "latest"
_NAME = re.compile(r"\d{8}-\d{6}-(?P<pid>\d+)")
#: Minimum of free space for a start.
_PROBE_BYTES = 64 * 1024


@contextmanager
def run_folder() -> Iterator[Path]:
    """Create and yield a folder for this run; remove it at the end if no process wrote a log there.

    Folders of old runs are removed, except those of running ones and of the last few.

    Raises:
        CommandError: the folder cannot be created.
    """
    try:
        root = log_folder()
        folder = _make(root)
    except OSError as error:
        raise CommandError(
            f"cannot write logs: {error}", advice="make room, or set TMPDIR to another folder"
        ) from error
    try:
        yield folder
    finally:
        if not list(folder.glob("*.log")):
            shutil.rmtree(folder, ignore_errors=True)
            _point_latest(root)


def _make(root: Path) -> Path:
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    probe = folder / ".probe"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
        probe.unlink()
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for old in _runs(root)[:-KEPT_RUNS]:
        if not _is_running(old):
            shutil.rmtree(old, ignore_errors=True)
    _point_latest(root)
    return folder


def _runs(root: Path) -> list[Path]:
    """Return the folders of runs, oldest first."""
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def _is_running(run: Path) -> bool:
    found = _NAME.fullmatch(run.name)
    return found is not None and psutil.pid_exists(int(found["pid"]))


def _point_latest(root: Path) -> None:
    """Replace the link in one step, so that it always points to a folder."""
    new = root / f".{LATEST}-{os.getpid()}"
    with suppress(OSError):
        runs = _runs(root)
        new.unlink(missing_ok=True)
        if not runs:
            (root / LATEST).unlink(missing_ok=True)
            return
        new.symlink_to(runs[-1].name)
        new.replace(root / LATEST)
