"""The model of a cluster to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.errors import EXIT_USAGE, CommandError
from cli.places import SHIPPED_MODEL, SHIPPED_MODEL_NAME
from shared.errors import ConfigError
from shared.gguf.folder import model_folder, model_name
from shared.hub.model import hub_name, is_on_hub, local_model
from shared.hub.settings import HubSettings

if TYPE_CHECKING:
    from pathlib import Path


def resolve_model(
    model: Path | None, served_model_name: str | None, hub: HubSettings | None = None
) -> tuple[Path, str]:
    """Return the model's folder or GGUF file, and its name for clients; by default the shipped one.

    A model on the hub is downloaded, with progress on standard error.

    Raises:
        CommandError: there is no checkpoint in that folder, the file cannot be used, or the
            download fails.
    """
    if model is not None and is_on_hub(model):
        name = served_model_name or hub_name(model)
        folder, _ = resolve_model(_download(model, hub or HubSettings()), name)
        return folder, name or model.name
    folder = (model or SHIPPED_MODEL).resolve()
    if not (_read_folder(folder) / "config.json").is_file():
        advice = (
            "name the folder of a Hugging Face checkpoint, or a GGUF file, with --model, "
            "or make a small one: baton make-model --help"
        )
        raise CommandError(
            f"there is no model in {folder}: it has no config.json",
            advice=advice,
            exit_code=EXIT_USAGE,
        )
    if served_model_name is None:
        served_model_name = model_name(folder) if model else SHIPPED_MODEL_NAME
    return folder, served_model_name


def _download(model: Path, hub: HubSettings) -> Path:
    try:
        return local_model(model, hub)
    except ConfigError as error:
        raise CommandError(
            str(error),
            advice="or name a folder of a Hugging Face checkpoint, or a GGUF file, with --model",
            exit_code=EXIT_USAGE,
        ) from error


def _read_folder(model: Path) -> Path:
    try:
        return model_folder(model)
    except ConfigError as error:
        raise CommandError(
            str(error), advice="download the file again", exit_code=EXIT_USAGE
        ) from error
