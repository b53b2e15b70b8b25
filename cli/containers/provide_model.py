"""Ensures that a folder has a model, so that the services that share it can start."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from cli.doctor.checkpoint import check_model
from cli.doctor.finding import Level
from cli.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path


def provide_model(folder: Path, source: Path) -> str:
    """Check the model in `folder`, or copy `source` there if it has none; return a report.

    The copy appears under its name only when it is complete.

    Raises:
        CommandError: the model there cannot be used, or the folder is not writable.
    """
    done = f"{folder}: a model is there"
    if not (folder / "config.json").is_file():
        _copy(source, folder)
        done = f"{folder}: copied {source.parent.name}, the model that comes with Baton"
    for finding in check_model(folder):
        if finding.level is Level.FAIL:
            raise CommandError(f"{finding.subject}: {finding.text}", advice=finding.advice)
    return done


def _copy(source: Path, folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise CommandError(
            f"{folder} has files but no config.json: that is no model",
            advice="put a Hugging Face checkpoint there, or empty it to get the small model",
        )
    incomplete = folder.with_name(f".{folder.name}.incomplete")
    try:
        shutil.rmtree(incomplete, ignore_errors=True)
        shutil.copytree(source, incomplete)
        if folder.exists():
            folder.rmdir()
        os.rename(incomplete, folder)  # noqa: PTH104 replaces nothing, in one step
    except OSError as error:
        raise CommandError(f"cannot write the model: {error}") from error
