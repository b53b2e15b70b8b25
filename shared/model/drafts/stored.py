"""A head's checkpoint as it lies on disk: its config, and all its tensors by name.

Heads are a few tensors, so they are read at once. Besides safetensors there are the files that
PyTorch writes: most published heads have nothing else. They are read without running their code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint_files import INDEX_NAME, SINGLE_NAME, find_checkpoint_files
from shared.model.config import parse_config
from shared.model.weights import copy_stored, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.model.config import ModelConfig

_BIN_NAME = "pytorch_model.bin"
#: What a head's config may call its base, and the architecture that it is computed as.
_BASES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM"}


@dataclass(frozen=True, slots=True)
class StoredHead:
    """What was read. Errors name `path`."""

    path: Path
    raw: Mapping[str, Any]
    tensors: dict[str, Tensor]

    def renamed(self, names: Mapping[str, str]) -> StoredHead:
        """With other prefixes: each name begins with at most one of the old ones."""
        tensors = {}
        for name, tensor in self.tensors.items():
            old = next((prefix for prefix in names if name.startswith(prefix)), "")
            tensors[names.get(old, "") + name.removeprefix(old)] = tensor
        return replace(self, tensors=tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor. Raises ModelLoadError: it is missing."""
        if name not in self.tensors:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is missing")
        return tuple(self.tensors[name].shape)

    def fill(self, targets: Mapping[str, Tensor], *, ignored: Iterable[str] = ()) -> None:
        """Copy every tensor into its place.

        Raises:
            ModelLoadError: one is missing, unknown, or of a wrong shape or dtype.
        """
        missing = sorted(targets.keys() - self.tensors.keys())
        if missing:
            raise ModelLoadError(f"{self.path}: tensor {missing[0]!r} is missing")
        unknown = sorted(self.tensors.keys() - targets.keys() - set(ignored))
        if unknown:
            raise ModelLoadError(f"{self.path}: tensor {unknown[0]!r} is not part of such a head")
        for name, target in targets.items():
            copy_stored(target, self.tensors[name], self.path, name)


def read_head(model_dir: Path, *, names: Iterable[str] = ()) -> StoredHead:
    """Read a head's directory. `names` are files that hold the weights instead of the usual ones.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    path = model_dir / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{path} holds a {type(raw).__name__}, not an object")
    for name in (*names, SINGLE_NAME, INDEX_NAME, _BIN_NAME):
        file = model_dir / name
        if file.exists():
            return StoredHead(file, raw, _read(file))
    wanted = ", ".join((*names, SINGLE_NAME, _BIN_NAME))
    raise ModelLoadError(f"{model_dir} has none of {wanted}")


def decoder_config(head: StoredHead, *, layer: str, target: ModelConfig) -> ModelConfig:
    """The config of a head's own layers; `layer` is the prefix of the first one's tensors.

    Biases and norms of the heads are there if they are stored. Positions reach as far as the
    target's: configs of heads name the length that they were trained with.

    Raises:
        ModelLoadError: the config is wrong, or does not fit the tensors or the target.
    """
    inner = head.raw.get("model")
    raw = {**(inner if isinstance(inner, dict) else head.raw)}
    raw["architectures"] = [_BASES.get(str(raw.get("model_type")), "LlamaForCausalLM")]
    try:
        config = parse_config(raw)
    except ModelLoadError as error:
        raise ModelLoadError(f"{head.path.with_name('config.json')}: {error}") from error
    if config.vocab_size != target.vocab_size:
        raise ModelLoadError(
            f"{head.path.with_name('config.json')}: vocab_size is {config.vocab_size}, "
            f"the target's is {target.vocab_size}"
        )
    _check_stored(head, layer, config)
    return replace(
        config,
        num_positions=max(config.num_positions, target.num_positions),
        qkv_bias=f"{layer}.self_attn.q_proj.bias" in head.tensors,
        output_bias=f"{layer}.self_attn.o_proj.bias" in head.tensors,
        mlp_bias=f"{layer}.mlp.gate_proj.bias" in head.tensors,
        qk_norm=f"{layer}.self_attn.q_norm.weight" in head.tensors,
    )


def _check_stored(head: StoredHead, layer: str, config: ModelConfig) -> None:
    """Before anything of the config's sizes is allocated: files are as large as they claim."""
    queries, keys = (num * config.head_dim for num in (config.num_heads, config.num_kv_heads))
    for name, field, size in (
        ("self_attn.q_proj", "num_attention_heads * head_dim", queries),
        ("self_attn.k_proj", "num_key_value_heads * head_dim", keys),
        ("mlp.gate_proj", "intermediate_size", config.intermediate_size),
        ("mlp.down_proj", "hidden_size", config.hidden_size),
    ):
        stored = head.shape(f"{layer}.{name}.weight")
        if not stored or stored[0] != size:
            raise ModelLoadError(
                f"{head.path}: tensor {layer}.{name}.weight has shape {list(stored)}, "
                f"but {field} is {size}"
            )


def _read(file: Path) -> dict[str, Tensor]:
    if file.name == INDEX_NAME:
        shards = find_checkpoint_files(file.parent).shards
        return {name: tensor for _, name, tensor in stored_tensors(shards)}
    if file.suffix == ".safetensors":
        return {name: tensor for _, name, tensor in stored_tensors([file])}
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of the reader
        raise ModelLoadError(f"{file} is damaged or not only tensors: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise ModelLoadError(f"{file} does not hold tensors by name")
    return content
