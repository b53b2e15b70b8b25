"""Recordings: a checkpoint as a library wrote it, and what the library itself makes of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

FOLDER = Path(__file__).parent / "recordings"
CONFIG, TENSORS, _ORACLE = "config.json", "model.safetensors", "oracle.safetensors"
#: Behind the names of modules in the oracle's file: the dense weight; inputs of some tokens, what
#: the library rounds them to, and what it answers.
DENSE, INPUTS, ROUNDED, OUTPUTS = ".weight", ".inputs", ".rounded", ".outputs"
#: The modules of a model whose weights are recorded: of its narrowest, and of one with more columns
#: than rows.
KEPT = ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj")
#: A prompt, and the logits behind each of its tokens.
PROMPT, LOGITS = "prompt", "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where a recording is from."""

    #: Name and version of what wrote the checkpoint.
    library: str
    #: Where in it the numbers were read from.
    reader: str
    #: What is stored, for people.
    what: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A folder of recordings."""

    path: Path
    about: About
    #: What the library makes of the checkpoint.
    oracle: Mapping[str, Tensor] = field(repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        config: dict[str, Any] = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        return config

    @property
    def method(self) -> str:
        """The `quant_method`."""
        return str(self.config["quantization_config"]["quant_method"])

    @property
    def is_model(self) -> bool:
        """Whether the checkpoint is a whole model."""
        return "architectures" in self.config

    def modules(self, suffix: str = DENSE) -> list[str]:
        """The modules of which the oracle has this."""
        return sorted(name.removesuffix(suffix) for name in self.oracle if name.endswith(suffix))


def write_oracle(path: Path, about: About, tensors: Mapping[str, Tensor]) -> None:
    """Write what a library makes of the checkpoint in a folder."""
    metadata = {"library": about.library, "reader": about.reader, "what": about.what}
    own = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(own, path / _ORACLE, metadata=metadata)


def keep_files(folder: Path) -> None:
    """Remove what a library writes beside config and tensors."""
    for path in folder.iterdir():
        if path.name not in (CONFIG, TENSORS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_recording(path: Path) -> Recording:
    """Return the recording in a folder."""
    with safe_open(path / _ORACLE, framework="pt") as file:
        about = About(**file.metadata())
    return Recording(path, about, load_file(path / _ORACLE))


def names() -> list[str]:
    """The names of all recordings."""
    return sorted(path.name for path in FOLDER.iterdir())


def recordings() -> Iterator[Recording]:
    """Yield all recordings."""
    for name in names():
        yield read_recording(FOLDER / name)
