"""The scales of keys and values that a checkpoint has for a KV cache of 8 bits.

Their tensors are read while the weights are loaded. They are judged when an engine asks for them:
one that keeps keys and values otherwise needs none.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.tensor_files import open_tensors
from shared.model.checkpoint.formats.kv_scheme import KVScheme, find_kv_scheme
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.contents import read_contents
from shared.model.checkpoint.wrapper import own_name
from shared.model.spec.mixers import LatentAttentionSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.checkpoint.files.tensor_files import TensorHeader
    from shared.model.checkpoint.headers.contents import Contents
    from shared.model.spec.decoder import DecoderSpec

log = structlog.get_logger(__name__)

#: By the last part of a name: of keys (0) or values (1) or both.
_SUFFIXES = {"k_scale": (0,), "v_scale": (1,), "kv_scale": (0, 1)}
#: Of what a projection returns. By its number among those of queries, keys and values: whose.
_OUTPUT, _OUTPUTS = "output_scale", {1: (0,), 2: (1,)}
_PROJECTIONS = "attention.qkv"
#: Of keys and of values, in names.
_LETTERS = "kv"


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scales as an engine keeps keys and values with them: numbers are codes times scale."""

    #: PyTorch's name of the codes' type.
    dtype: str
    #: By layer: float32 [2 (key, value), num_kv_heads].
    by_layer: Mapping[int, Tensor]

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the scales."""
        found = hashlib.sha256(f"baton.kv.scales.v1\n{self.dtype}\n".encode())
        for layer, scales in sorted(self.by_layer.items()):
            numbers = ",".join(map(float.hex, scales.flatten().tolist()))
            found.update(f"{layer}:{numbers}\n".encode())
        return found.hexdigest()

    def of_layers(self, layers: Sequence[int]) -> Tensor:
        """Return float32 [layers, 2 (key, value), num_kv_heads]."""
        return torch.stack([self.by_layer[layer] for layer in layers])


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor of a file."""

    path: Path
    name: str
    tensor: Tensor

    def refused(self, why: str) -> ModelLoadError:
        """Return the error that names it."""
        return ModelLoadError(f"{self.path}: tensor {self.name!r} {why}")


@dataclass(frozen=True, slots=True)
class Attentions:
    """Attentions of a model, by their names as the files spell them."""

    #: Their layers.
    layers: Mapping[str, int]
    #: Of projections of keys (0) and values (1): which of them.
    outputs: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StoredKVScales:
    """What a checkpoint's config and files say of the scales of its keys and values."""

    scheme: KVScheme
    #: By layer, and 0 for keys or 1 for values. Some files have one under two names.
    found: Mapping[tuple[int, int], Sequence[_Found]]
    files: CheckpointFiles

    def check(self, spec: DecoderSpec) -> KVScales:
        """Return the scales, if every layer with keys and values of its own has them.

        Raises:
            ModelLoadError: a scale is missing, has another shape, is no positive number or is there
                twice and differs; names file and tensor. Or the config asks for numbers, or the
                model for an attention, that cannot be kept so.
        """
        where = self.files.beside("config.json")
        if self.scheme.problem:
            raise ModelLoadError(
                f"{where}: keys and values cannot be kept so: {self.scheme.problem}"
            )
        by_layer = {}
        for layer in (layer for layers in spec.kv_groups for layer in layers):
            mixer = spec.attentions.get(layer)
            if isinstance(mixer, LatentAttentionSpec):
                raise ModelLoadError(
                    f"{where}: {self.scheme.where}: rows of latent attention are not kept so"
                )
            if mixer is not None:
                rows = [self._row(layer, kind, mixer.kv_shape[1]) for kind in range(len(_LETTERS))]
                by_layer[layer] = torch.stack(rows)
        return KVScales(self.scheme.dtype, by_layer)

    def _row(self, layer: int, kind: int, num_heads: int) -> Tensor:
        if (layer, kind) not in self.found:
            raise self._missing(layer, kind)
        own, *others = self.found[layer, kind]
        for other in others:
            if not torch.equal(own.tensor.flatten(), other.tensor.flatten()):
                raise other.refused(f"differs from {own.name!r}, which is the same scale")
        shape = [size for size in own.tensor.shape if size != 1]
        if shape not in ([], [num_heads]) or (shape and not self.scheme.by_head):
            wanted = f"{num_heads} numbers or one" if self.scheme.by_head else "one number"
            raise own.refused(
                f"has shape {list(own.tensor.shape)}, {self.scheme.where} asks for {wanted}"
            )
        row = own.tensor.float().flatten().expand(num_heads)
        if not bool(((row > 0) & row.isfinite()).all()):
            raise own.refused(f"must be positive and finite, not {row.tolist()}")
        return row

    def _missing(self, layer: int, kind: int) -> ModelLoadError:
        """Return the error for a scale that is not there, with the name that others suggest."""
        (_, like), (other, *_) = min(self.found.items(), key=lambda item: item[0][1] != kind)
        name = re.sub(r"\.\d+\.", f".{layer}.", other.name, count=1)
        name = re.sub(rf"\b{_LETTERS[like]}_", f"{_LETTERS[kind]}_", name)
        return ModelLoadError(
            f"{self.files.expected_in(name)}: tensor {name!r} is missing, which "
            f"{self.scheme.where} asks for"
        )


def read_kv_scales(files: CheckpointFiles, spec: DecoderSpec) -> StoredKVScales | None:
    """Return the scales of a checkpoint; None if its config names none, or its files have none.

    Raises:
        ModelLoadError: a file is damaged.
    """
    if find_format(spec.raw) is None:  # only formats have them
        return None
    contents = read_contents(files.shards, spec)
    if not contents.kv_scales:
        return None
    return place_kv_scales(files, spec, contents.kv_scales, _attentions(contents, spec))


def place_kv_scales(
    files: CheckpointFiles,
    spec: DecoderSpec,
    headers: Mapping[str, TensorHeader],
    attentions: Attentions,
) -> StoredKVScales | None:
    """Return the scales among these tensors of some files. None, and raises: `read_kv_scales`."""
    scheme = _scheme(files, spec)
    places = _places(headers, attentions) if scheme is not None else {}
    unread = len(headers) - len(places)
    if unread:
        log.info(
            "kv_scales_not_read", num=unread, of="queries, weights of attention, or other parts"
        )
    if scheme is None or not places:
        return None
    return StoredKVScales(scheme, _read(headers, places), files)


def _scheme(files: CheckpointFiles, spec: DecoderSpec) -> KVScheme | None:
    try:
        return find_kv_scheme(spec.raw)
    except ModelLoadError as error:
        raise ModelLoadError(f"{files.beside('config.json')}: {error}") from error


def _read(
    headers: Mapping[str, TensorHeader], places: Mapping[str, tuple[int, tuple[int, ...]]]
) -> dict[tuple[int, int], list[_Found]]:
    by_path: dict[Path, list[str]] = defaultdict(list)
    for name in places:
        by_path[headers[name].path].append(name)
    found: dict[tuple[int, int], list[_Found]] = defaultdict(list)
    for path, names in by_path.items():
        with open_tensors(path) as file:
            for name in names:
                own = _Found(path, name, file.get_tensor(name))
                layer, kinds = places[name]
                for kind in kinds:
                    found[layer, kind].append(own)
    return found


def _places(
    headers: Iterable[str], attentions: Attentions
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """By name of a tensor: its layer, and whose scale it is."""
    layers, found = attentions.layers, {}
    for name in headers:
        module, _, last = name.rpartition(".")
        layer = layers.get(module, layers.get(module.rpartition(".")[0]))
        kinds = attentions.outputs.get(module) if last == _OUTPUT else _SUFFIXES.get(last)
        if kinds is not None and layer is not None:
            found[name] = layer, kinds
    return found


def _attentions(contents: Contents, spec: DecoderSpec) -> Attentions:
    """Those of a model with a description."""
    layers: dict[str, int] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    for stored in contents.tensors:
        own = contents.names.get(own_name(spec, contents.names, stored))
        layer = None if own is None else own.part.layer
        if own is None or layer is None:
            continue
        if own.part.module.startswith(f"layers.{layer}.attention."):
            projection = stored.rpartition(".")[0]
            layers[projection.rpartition(".")[0]] = layer
            if own.part.module.endswith(_PROJECTIONS) and own.part.index in _OUTPUTS:
                outputs[projection] = _OUTPUTS[own.part.index]
    return Attentions(layers, outputs)
