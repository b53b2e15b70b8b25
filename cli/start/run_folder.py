"""A folder for each run of a cluster, so that two of them share no log."""

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

#: Runs whose folders stay, besides those that still run.
KEPT_RUNS = 10
#: Points to the folder of the run that was started last.
LATEST = "latest"
_NAME = re.compile(r"\d{8}-\d{6}-(?P<pid>\d+)")
#: Room that a start needs at the least.
_PROBE_BYTES = 64 * 1024


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder for this run; it is gone at the end if no process wrote a log there.

    Folders of old runs are removed, those that still run and the last few excepted.

    Raises:
        CommandError: nothing can be written there.
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
    """The folders of runs, the oldest first."""
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def _is_running(run: Path) -> bool:
    found = _NAME.fullmatch(run.name)
    return found is not None and psutil.pid_exists(int(found["pid"]))


def _point_latest(root: Path) -> None:
    """In one step, so that the link always leads to a folder."""
    new = root / f".{LATEST}-{os.getpid()}"
    with suppress(OSError):
        runs = _runs(root)
        new.unlink(missing_ok=True)
        if not runs:
            (root / LATEST).unlink(missing_ok=True)
            return
        new.symlink_to(runs[-1].name)
        new.replace(root / LATEST)
