"""The model of a cluster to start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cli.errors import EXIT_USAGE, CommandError
from cli.places import SHIPPED_MODEL, SHIPPED_MODEL_NAME
from shared.errors import ConfigError
from shared.gguf.folder import model_folder, model_name

if TYPE_CHECKING:
    from pathlib import Path

#: Form of a Hugging Face repository's name.
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(model: Path | None, served_model_name: str | None) -> tuple[Path, str]:
    """Return the model's folder or GGUF file, and its name for clients; by default the shipped one.

    Raises:
        CommandError: there is no checkpoint in that folder, or the file cannot be used.
    """
    folder = (model or SHIPPED_MODEL).resolve()
    if not (_read_folder(folder) / "config.json").is_file():
        advice = (
            "name the folder of a Hugging Face checkpoint, or a GGUF file, with --model, "
            "or make a small one: baton make-model --help"
        )
        if model is not None and not folder.exists() and _HUB_NAME.fullmatch(str(model)):
            advice = f"download it first: hf download {model} --local-dir {model.name}"
        raise CommandError(
            f"there is no model in {folder}: it has no config.json",
            advice=advice,
            exit_code=EXIT_USAGE,
        )
    if served_model_name is None:
        served_model_name = model_name(folder) if model else SHIPPED_MODEL_NAME
    return folder, served_model_name


def _read_folder(model: Path) -> Path:
    try:
        return model_folder(model)
    except ConfigError as error:
        raise CommandError(
            str(error), advice="download the file again", exit_code=EXIT_USAGE
        ) from error
