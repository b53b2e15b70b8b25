"""The folder of a model that has a name on Hugging Face's hub: `org/name`, `org/name:Q4_K_M`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from shared.hub.settings import HubSettings

#: A repository, and the type of its GGUF file.
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<type>\w+))?")
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
#: Forms of weights, the first one that a repository has.
_WEIGHTS = ("*.safetensors", "*.bin")


def is_on_hub(model: Path) -> bool:
    """Return whether this is a name on the hub: two words with a slash, and no such file here."""
    return _NAME.fullmatch(str(model)) is not None and not model.exists()


def hub_name(model: Path) -> str | None:
    """Return the model's name for clients if it is on the hub: the repository's."""
    match = _NAME.fullmatch(str(model))
    return match["repo"] if match is not None and not model.exists() else None


def local_model(model: Path, settings: HubSettings, *, endpoint: str | None = None) -> Path:
    """Return a folder or file of this machine: `model` itself, or that of its download.

    Files that are there already are not downloaded again. Progress goes to standard error.
    `endpoint`: another address of the hub than HF_ENDPOINT.

    Raises:
        ConfigError: there is no such model, it may not be read, or it cannot be stored.
    """
    match = _NAME.fullmatch(str(model))
    if match is None or model.exists():
        return model
    # The library takes a third of a second to import; models on this machine do without it.
    from shared.hub.download import downloader  # noqa: PLC0415

    download = downloader(match["repo"], settings, endpoint)
    kind = match["type"]
    if kind is not None:
        return _gguf_file(download([f"*{kind}*.gguf"]), kind, model)
    for weights in _WEIGHTS:
        folder = download([*_SMALL, "*.py", weights])
        if any(folder.glob(weights)):
            return folder
    raise ConfigError(
        f"{model} on the hub has no weights that Baton reads ({', '.join(_WEIGHTS)}); of a GGUF "
        f"file name the type, too: {model}:Q4_K_M"
    )


def local_files(model: Path, settings: HubSettings, *, endpoint: str | None = None) -> Path:
    """Return the same without the weights: a folder with the files beside them.

    Raises:
        ConfigError: as for `local_model`.
    """
    match = _NAME.fullmatch(str(model))
    if match is None or model.exists() or match["type"] is not None:
        return local_model(model, settings, endpoint=endpoint)
    from shared.hub.download import downloader  # noqa: PLC0415 as above

    return downloader(match["repo"], settings, endpoint)([*_SMALL, "*.py"])


def _gguf_file(folder: Path, kind: str, model: Path) -> Path:
    files = sorted(path for path in folder.rglob("*.gguf") if kind.lower() in path.name.lower())
    if not files:
        raise ConfigError(f"{model} on the hub has no GGUF file of the type {kind}")
    return files[0]
