"""Finds the folder of a model: downloaded, made of a GGUF file, and changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.folder.changed import changed_folder
from shared.gguf.folder import model_folder
from shared.hub.model import local_files, local_model

if TYPE_CHECKING:
    from pathlib import Path

    from shared.folder.changes import FolderChanges
    from shared.hub.settings import HubSettings


def find_folder(model: Path, hub: HubSettings, changes: FolderChanges) -> Path:
    """Return the folder to read a model from.

    Raises:
        ConfigError: there is no such model, it cannot be downloaded, or a change cannot be made.
    """
    return change_folder(local_model(model, hub), hub, changes)


def change_folder(model: Path, hub: HubSettings, changes: FolderChanges) -> Path:
    """Return the folder of a model on this machine with the changes; without any, its own folder.

    Raises:
        ConfigError: a GGUF file cannot be read, or a change cannot be made.
    """
    return changed_folder(
        model_folder(model),
        overrides=changes.overrides,
        config_from=_small(changes.hf_config_path, hub),
        tokenizer_from=_small(changes.tokenizer, replace(hub, revision=changes.tokenizer_revision)),
    )


def _small(model: Path | None, hub: HubSettings) -> Path | None:
    """Return a folder with the small files of a model: it needs no weights."""
    return None if model is None else model_folder(local_files(model, hub))
