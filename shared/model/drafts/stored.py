"""A head's checkpoint on disk: its config, and all its tensors by name.

Heads are a few tensors, so they are read at once. Besides safetensors PyTorch's own files are
accepted: most published heads have no others. They are read without running their code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError
from shared.model.checkpoint.config import parse_spec
from shared.model.checkpoint.files.checkpoint_files import (
    BIN_NAME,
    INDEX_NAME,
    SINGLE_NAME,
    find_checkpoint_files,
)
from shared.model.checkpoint.files.json_file import read_json
from shared.model.checkpoint.files.tensor_files import stored_tensors
from shared.model.checkpoint.loading.weights import copy_stored, tensor_of
from shared.model.families.dense.llama import LLAMA
from shared.model.families.naming import Naming
from shared.model.families.registry import ARCHITECTURES
from shared.model.spec.feed_forwards import FeedForwardSpec
from shared.model.spec.mixers import QkNorm
from shared.model.weight_map import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from shared.model.spec.decoder import DecoderSpec, LayerSpec
    from shared.model.weight_map import WeightMap


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A head's config and tensors as read. Errors name `path`."""

    path: Path
    raw: Mapping[str, Any]
    tensors: dict[str, Tensor]

    def renamed(self, names: Mapping[str, str]) -> StoredHead:
        """Return the head with new prefixes: each name begins with at most one of the old ones."""
        tensors = {}
        for name, tensor in self.tensors.items():
            old = next((prefix for prefix in names if name.startswith(prefix)), "")
            tensors[names.get(old, "") + name.removeprefix(old)] = tensor
        return replace(self, tensors=tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor.

        Raises:
            ModelLoadError: it is missing.
        """
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
    """Read a head's directory. `names` replace the usual names of weight files.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """
    path = model_dir / "config.json"
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{path} holds a {type(raw).__name__}, not an object")
    for name in (*names, SINGLE_NAME, INDEX_NAME, BIN_NAME):
        file = model_dir / name
        if file.exists():
            return StoredHead(file, raw, _read(file))
    wanted = ", ".join((*names, SINGLE_NAME, BIN_NAME))
    raise ModelLoadError(f"{model_dir} has none of {wanted}")


def head_spec(head: StoredHead, *, layer: str, target: DecoderSpec) -> DecoderSpec:
    """Return the description of a head's own layers; `layer`: prefix of the first one's tensors.

    Biases and norms of attention heads exist if they are stored. The positions are the target's:
    configs of heads have the length that they were trained with.

    Raises:
        ModelLoadError: the config is wrong, or does not fit the tensors or the target.
    """
    inner = head.raw.get("model")
    raw = {**(inner if isinstance(inner, dict) else head.raw)}
    raw["architectures"] = [ARCHITECTURES.get(str(raw.get("model_type")), LLAMA.architecture)]
    where = head.path.with_name("config.json")
    try:
        spec = parse_spec(raw)
    except ModelLoadError as error:
        raise ModelLoadError(f"{where}: {error}") from error
    if spec.vocab_size != target.vocab_size:
        raise ModelLoadError(
            f"{where}: vocab_size is {spec.vocab_size}, the target's is {target.vocab_size}"
        )
    own = _as_stored(head, spec, layer)
    first = replace(spec, layers=(own,))
    _check_stored(head, Naming().layer_names(first, 0, stored=f"{layer}."))
    return replace(
        spec,
        layers=tuple(
            replace(
                each,
                mixer=replace(
                    own.attention,
                    window=each.attention.window,
                    is_chunked=each.attention.is_chunked,
                ),
                feed_forward=own.feed_forward,
            )
            for each in spec.layers
        ),
        num_positions=max(spec.num_positions, target.num_positions),
    )


def layer_targets(
    layer: nn.Module, spec: DecoderSpec, number: int, *, stored: str
) -> dict[str, Tensor]:
    """Where the tensors of a head's layer go, by name."""
    names = Naming().layer_names(spec, number, stored=f"{stored}.")
    return {name: tensor_of(layer, each.part) for name, each in names.items()}


def _as_stored(head: StoredHead, spec: DecoderSpec, layer: str) -> LayerSpec:
    """Return the first layer, with the biases and norms that are stored."""
    first = spec.layers[0]
    feed_forward = first.feed_forward
    where = head.path.with_name("config.json")
    if not isinstance(feed_forward, FeedForwardSpec):
        raise ModelLoadError(f"{where}: {spec.architecture} has experts, which no head of ours has")
    for what, is_there in (
        ("latent attention", spec.has_latents),
        ("states", spec.has_states),
        ("inputs of layers", spec.layer_inputs is not None),
        ("factors of layers", first.has_scale),
    ):
        if is_there:
            raise ModelLoadError(
                f"{where}: {spec.architecture} has {what}, which no head of ours has"
            )
    every = replace(
        first,
        mixer=replace(first.attention, qkv_bias=True, output_bias=True, qk_norm=QkNorm.HEAD),
        feed_forward=replace(feed_forward, bias=True),
    )
    names = Naming().layer_names(replace(spec, layers=(every,)), 0, stored=f"{layer}.")
    has = {
        (each.part.module, each.part.kind)
        for name, each in names.items()
        if name in head.tensors and each.part.index == 0
    }
    return replace(
        every,
        mixer=replace(
            every.attention,
            qkv_bias=("attention.qkv", Kind.BIAS) in has,
            output_bias=("attention.output", Kind.BIAS) in has,
            qk_norm=QkNorm.HEAD if ("attention.q_norm", Kind.WEIGHT) in has else None,
        ),
        feed_forward=replace(feed_forward, bias=("mlp.gate_up", Kind.BIAS) in has),
    )


def _check_stored(head: StoredHead, names: WeightMap) -> None:
    """Check the shapes before memory of the config's sizes is allocated.

    Files are as large as they claim. The input size of the projections depends on the kind of head.
    """
    for name, each in names.items():
        if len(each.shape) > 1 and head.shape(name)[:1] != each.shape[:1]:
            raise ModelLoadError(
                f"{head.path}: tensor {name} has shape {list(head.shape(name))}, "
                f"the config asks for {each.shape[0]} rows"
            )


def _read(file: Path) -> dict[str, Tensor]:
    shards = find_checkpoint_files(file.parent).shards if file.name == INDEX_NAME else (file,)
    return {name: tensor for _, name, tensor in stored_tensors(shards)}
