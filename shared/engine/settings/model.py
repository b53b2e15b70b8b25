"""The model of an engine, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 read at run time by the settings loader

from shared.config import setting
from shared.errors import ConfigError
from shared.folder.changes import FolderChanges
from shared.folder.find import change_folder
from shared.gguf.folder import model_folder, model_name
from shared.hub.model import hub_name, local_model
from shared.hub.settings import HubSettings

MAX_GENERATION = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model, and how it is loaded. Names as in vLLM."""

    model: Path = setting(
        help="directory of a Hugging Face checkpoint, a GGUF file, or a name on the hub"
    )
    served_model_name: tuple[str, ...] = setting(
        (), help="names that clients use, the first one for routers; default: the directory's name"
    )
    dtype: str = setting("auto", help="auto, float32, bfloat16 or float16")
    load_format: str = setting("auto", help="auto, safetensors or dummy")
    attention_backend: str = setting(
        "auto", help="auto, native (C++ for this CPU), torch or triton"
    )
    model_impl: str = setting(
        "auto",
        help="auto, native, torch or transformers: what computes the model; auto takes the modules "
        "of transformers for an architecture that Baton does not know itself",
    )
    model_class: str = setting(
        "", help="a family of models in Python code of your own, as package.module:NAME"
    )
    trust_remote_code: bool = setting(
        default=False, help="run Python code that is in the model's directory"
    )
    quantization: str = setting(
        "none",
        help="none, int8, fp8 or int4: weights are narrowed while they are loaded; or the format "
        "that the checkpoint has, as quark, which is checked",
    )
    cpu_int4_compute: str = setting(
        "auto",
        help="what a CPU multiplies weights of 4 bits with: float (inputs as they are), int8 "
        "(inputs rounded to 8 bits, faster) or auto (int8 for a model in bfloat16)",
    )
    model_seed: int = setting(0, help="seed of the weights with --load-format dummy")
    model_generation: int = setting(
        0,
        help="which generation of the model's weights this is: all its workers must have the same "
        "weights; raise it to change them",
    )
    hub: HubSettings = field(default_factory=HubSettings)
    changes: FolderChanges = field(default_factory=FolderChanges)

    def __post_init__(self) -> None:
        if not 0 <= self.model_generation < MAX_GENERATION:
            raise ConfigError(f"--model-generation must be 0 to {MAX_GENERATION - 1}")

    @property
    def name(self) -> str:
        """The model's name for routers: one of their names."""
        return (*self.served_model_name, hub_name(self.model) or model_name(self.model))[0]

    @property
    def own_folder(self) -> Path:
        """The folder of the model itself, without changes.

        Raises:
            ConfigError: the model is a GGUF file that cannot be read, or cannot be downloaded.
        """
        return model_folder(local_model(self.model, self.hub))

    @property
    def folder(self) -> Path:
        """The folder to read the model from.

        Raises:
            ConfigError: there is none, or a change of it cannot be made.
        """
        return self.changed(self.own_folder)

    def changed(self, folder: Path) -> Path:
        """Return the folder to read other weights of the model from: with the same changes.

        Raises:
            ConfigError: a GGUF file cannot be read, or a change cannot be made.
        """
        return change_folder(folder, self.hub, self.changes)
