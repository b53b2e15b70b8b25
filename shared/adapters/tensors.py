"""The tensors of an adapter's file, by module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import AdapterError, ModelLoadError
from shared.model.checkpoint.files.tensor_files import read_headers

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from shared.adapters.config import AdapterConfig
    from shared.adapters.targets import BaseModules, Target
    from shared.model.checkpoint.files.tensor_files import TensorHeader

FILE_NAME = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_PREFIX = "base_model.model."
#: Some trainers leave the adapter's name in, as in `lora_A.default.weight`.
_MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(\.[^.]+)?\.weight")
#: What the ends of other names are.
_OTHERS = (
    (re.compile(r"\.lora_magnitude_vector\b"), "a magnitude of DoRA"),
    (re.compile(r"\.lora_embedding_[AB]\b"), "a matrix for an embedding"),
    (re.compile(r"\.lora_[AB](\.[^.]+)?\.bias$"), "a bias of a matrix"),
    (re.compile(r"\.ia3_l\b"), "a vector of IA3"),
    (re.compile(r"\.(base_layer|modules_to_save)\."), "a whole weight of the base"),
    (re.compile(r"\.lora_"), "a matrix of an unknown kind"),
)
_DTYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPair:
    """The two matrices of a module in the file."""

    module: str
    target: Target
    #: Names in the file.
    a: str
    b: str
    rank: int


def find_pairs(
    folder: Path, config: AdapterConfig, base: BaseModules, *, max_rank: int
) -> list[StoredPair]:
    """Return what the file has, by module in the order of names, from its header alone.

    Raises:
        AdapterError: there is no such file, or it does not fit the config or the base; names the
            tensor.
    """
    headers = _headers(folder)
    found: dict[str, dict[str, str]] = {}
    for name in headers:
        module, which = _parts_of(name, folder)
        known = base.known_name(module)
        if known in base.unread:
            continue
        own = found.setdefault(known, {})
        if which in own:
            raise AdapterError(f"{folder}: tensors {own[which]!r} and {name!r} are of one module")
        own[which] = name
    if not found:
        raise AdapterError(f"{folder / FILE_NAME} has no tensors")
    pairs = [
        _pair(module, found[module], headers, config, base, folder) for module in sorted(found)
    ]
    _check_complete(found, config, base, folder)
    over = max(pairs, key=lambda pair: pair.rank)
    if over.rank > max_rank:
        raise AdapterError(
            f"{folder}: the rank of {over.module} is {over.rank}, over the limit of {max_rank} "
            "(--max-lora-rank)"
        )
    return pairs


def _headers(folder: Path) -> dict[str, TensorHeader]:
    path = folder / FILE_NAME
    if not path.is_file():
        if (folder / _PICKLED).exists():
            raise AdapterError(
                f"{folder / _PICKLED} is a pickle, which can run code: convert it to {FILE_NAME}"
            )
        raise AdapterError(f"{folder} has no {FILE_NAME}")
    try:
        return read_headers(path)
    except ModelLoadError as error:
        raise AdapterError(str(error)) from error


def _parts_of(name: str, folder: Path) -> tuple[str, str]:
    """Return the module and which of its matrices a tensor is."""
    own = name.removeprefix(_PREFIX)
    found = _MATRIX.fullmatch(own)
    if found is not None:
        return found["module"], found["which"]
    for pattern, what in _OTHERS:
        if pattern.search(own):
            raise AdapterError(f"{folder}: tensor {name!r} is {what}: not served")
    raise AdapterError(f"{folder}: tensor {name!r} is no matrix of a LoRA")


def _pair(
    module: str,
    own: dict[str, str],
    headers: dict[str, TensorHeader],
    config: AdapterConfig,
    base: BaseModules,
    folder: Path,
) -> StoredPair:
    a, b = own.get("A"), own.get("B")
    if a is None or b is None:
        missing = "lora_A" if a is None else "lora_B"
        raise AdapterError(f"{folder}: tensor {a or b!r} has no partner: {missing} is missing")
    target = base.by_name.get(module)
    if target is None:
        raise AdapterError(
            f"{folder}: tensor {a!r}: the base has no module {module}; of its layers, these take "
            f"adapters: {base.taking}"
        )
    if target.why_not is not None:
        raise AdapterError(
            f"{folder}: tensor {a!r}: {module} is {target.why_not}, which takes no adapter; of "
            f"the base's layers, these do: {base.taking}"
        )
    if not config.selection.has(module):
        raise AdapterError(f"{folder}: tensor {a!r}: the config does not target {module}")
    rank = config.rank_of(module)
    for name, shape in ((a, (rank, target.in_size)), (b, (target.out_size, rank))):
        header = headers[name]
        if header.shape != shape:
            raise AdapterError(
                f"{folder}: tensor {name!r} is {list(header.shape)}, and rank {rank} of this base "
                f"needs {list(shape)}"
            )
        if header.dtype not in _DTYPES:
            raise AdapterError(f"{folder}: tensor {name!r} is of {header.dtype}, not of floats")
    return StoredPair(module=module, target=target, a=a, b=b, rank=rank)


def _check_complete(
    found: Container[str], config: AdapterConfig, base: BaseModules, folder: Path
) -> None:
    if not config.selection.is_exact:
        return
    for module, target in base.by_name.items():
        if target.why_not is None and module not in found and config.selection.has(module):
            raise AdapterError(
                f"{folder}: the config targets {module}, and {FILE_NAME} has nothing of it"
            )
