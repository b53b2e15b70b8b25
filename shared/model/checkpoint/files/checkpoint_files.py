"""The files of a directory with weights, and the expected file of each tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.gguf.folder import SUFFIX as GGUF
from shared.model.checkpoint.files.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
#: PyTorch's own.
BIN_INDEX_NAME = "pytorch_model.bin.index.json"
BIN_NAME = "pytorch_model.bin"


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The shards in a fixed order, and the index if there is one."""

    shards: tuple[Path, ...]
    #: By tensor: the file's name.
    weight_map: Mapping[str, str] = field(default_factory=dict)

    def expected_in(self, tensor: str) -> Path:
        """Return the path of the file that should have `tensor`.

        It is the file in the index, or the first shard if the index does not have the tensor.
        """
        return self.beside(self.weight_map.get(tensor, self.shards[0].name))

    def beside(self, name: str) -> Path:
        """Return the path of another file of the directory."""
        return self.shards[0].with_name(name)

    def lacks(self, missing: Collection[str], num_wanted: int) -> ModelLoadError:
        """Return the error for tensors that are missing, of so many."""
        name = min(missing)
        return ModelLoadError(
            f"{self.expected_in(name)}: tensor {name!r} is missing "
            f"({len(missing)} of {num_wanted} are)"
        )


def find_checkpoint_files(model_dir: Path) -> CheckpointFiles:
    """Return the files of a model's weights: safetensors if there are some, GGUF, or PyTorch's own.

    Raises:
        ModelLoadError: there are none, an index is damaged, or a shard in it is missing.
    """
    made = tuple(sorted(model_dir.glob(f"model*{GGUF}")))
    for index, single, others in ((INDEX_NAME, SINGLE_NAME, made), (BIN_INDEX_NAME, BIN_NAME, ())):
        if (model_dir / index).exists():
            return _files_of(model_dir / index)
        if others:
            return CheckpointFiles(others)
        if (model_dir / single).exists():
            return CheckpointFiles((model_dir / single,))
    raise ModelLoadError(f"{model_dir} has none of {SINGLE_NAME}, {INDEX_NAME} and {BIN_NAME}")


def _files_of(index: Path) -> CheckpointFiles:
    weight_map = _read_weight_map(index)
    names = sorted(set(weight_map.values()))
    for name in names:
        if not name or PurePath(name).name != name:
            raise ModelLoadError(f"{index} names {name!r}, which is not a file of its directory")
        if not _is_there(index.with_name(name)):
            raise ModelLoadError(f"shard {index.with_name(name)} is missing; {index.name} names it")
    return CheckpointFiles(tuple(index.with_name(name) for name in names), weight_map)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # its name is too long for a file's
        return False


def _read_weight_map(index: Path) -> dict[str, str]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index} has no weight_map")
    if not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelLoadError(f"{index} has a weight_map whose values are not file names")
    return weight_map
