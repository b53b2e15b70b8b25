"""Runs a checkpoint's layers one after the other on sequences of a calibration.

Memory has one layer, what it keeps of a few sequences, and the residual streams of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from shared.model.attention.base import AttentionMetadata
from shared.model.attention.registry import get_backend
from shared.model.checkpoint.headers.contents import Contents
from shared.model.checkpoint.loading.reading import read_tensors
from shared.model.checkpoint.loading.weights import fill
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.wrapper import own_name
from shared.model.decoder.causal_lm import CausalLM
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.linear.base import DENSE, MadeOfDense
from shared.model.linear.fused import FusedLinear
from shared.model.linear.stored import AsStored
from shared.model.quantize.gptq import Hessian
from shared.model.rope_table import rotation_tables
from shared.model.spec.mixers import AttentionSpec
from shared.model.spec.norms import NormPlace
from shared.model.weight_map import EMBEDDING, HEAD, HEAD_BIAS, LAYERS, NORM, NORM_BIAS, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch import Tensor

    from shared.model.linear.base import LinearMethod, Product
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightPart

#: Hessians that are summed up in one pass over the sequences.
_HESSIAN_BYTES = 4 << 30
#: Slots for keys and values: as many sequences run together as have room.
_SLOTS = 4096
#: Behind the last layer.
_BEHIND = (HEAD, HEAD_BIAS, NORM, NORM_BIAS)


@dataclass(frozen=True, slots=True)
class KvPeaks:
    """The largest magnitudes of a layer's keys and values, as they are kept."""

    key: float
    value: float


class LayerRunner:
    """The residual streams of all sequences, in front of one layer."""

    @torch.inference_mode()
    def __init__(
        self, spec: DecoderSpec, contents: Contents, sequences: Sequence[Sequence[int]]
    ) -> None:
        """contents: of the dense checkpoint, which the first layer's inputs come from."""
        self._spec = spec
        self._contents = contents
        self._tables = rotation_tables(spec, torch.float32)
        self._lengths = [len(each) for each in sequences]
        size = max(1, _SLOTS // max(self._lengths))
        self._batches = [
            range(start, min(start + size, len(sequences)))
            for start in range(0, len(sequences), size)
        ]
        num_blocks = len(sequences) if spec.shares_kv else size
        self._caches = _make_caches(spec, num_blocks, max(self._lengths))
        #: float32 [num_tokens, hidden] of each sequence.
        self.streams: list[Tensor] = []
        #: Of each sequence, where the next layer reads beside the one before it: what that one
        #: adds, and the stream in front of it.
        self._addends: list[tuple[Tensor, Tensor]] = []
        self._rows: list[Tensor | None] = []
        model = _without_layers(spec, contents)
        for each in sequences:
            x, rows = model.enter(torch.tensor(each), torch.arange(len(each)))
            self.streams.append(x)
            self._rows.append(rows)

    @torch.inference_mode()
    def hessians(
        self, layer: int, paths: Collection[str]
    ) -> Iterator[tuple[dict[str, Hessian], KvPeaks]]:
        """Yield Hessians of linears of the dense layer, by path in the model, in few at a time.

        With each come the peaks of its keys and values. Linears that PyTorch does not multiply
        with have none.
        """
        method = _Watching()
        own = self._load(layer, self._contents, self._spec, method)
        watched = {
            f"{LAYERS}.{layer}.{path}": each.product
            for path, each in own.named_modules()
            if isinstance(each, FusedLinear) and isinstance(each.product, _Watched)
        }
        for some in _rounds({path: watched[path] for path in watched if path in paths}):
            for each in some.values():
                each.hessian = Hessian(each.weight.shape[1])
            peaks = KvPeaks(0.0, 0.0)
            for batch in self._batches:
                self._run(own, layer, batch)
                peaks = self._with_peaks(peaks, layer, batch)
            yield {path: each.taken() for path, each in some.items()}, peaks

    @torch.inference_mode()
    def advance(self, layer: int, contents: Contents, spec: DecoderSpec) -> None:
        """Move the streams behind a layer as these files have it: quantised."""
        method = AsStored(torch.device("cpu"), implementation="torch")
        own = self._load(layer, contents, spec, method)
        addends: list[tuple[Tensor, Tensor]] = []
        for batch in self._batches:
            parts = self._run(own, layer, batch)
            self.streams[batch.start : batch.stop] = [x + residual for x, residual in parts]
            addends += parts if self._is_beside(layer + 1) else ()
        self._addends = addends

    def _is_beside(self, layer: int) -> bool:
        """Whether there is such a layer, and it reads what the one before it reads."""
        layers = self._spec.layers[layer : layer + 1]
        return any(own.norms is NormPlace.BESIDE for own in layers)

    def _load(
        self, layer: int, contents: Contents, spec: DecoderSpec, method: LinearMethod
    ) -> DecoderLayer:
        """Return a layer with its weights, and the norm that it reads of the one before it."""
        own = self._made(layer, method)
        if not self._spec.shares_kv:
            own.attention.place = 0  # the caches have one layer only
        model = nn.Module()
        model.layers = nn.ModuleDict({str(layer): own})
        _fill_parts(model, spec, contents, lambda part: part.layer == layer)
        if self._is_beside(layer):
            with torch.device("meta"):
                before = self._made(layer - 1, DENSE)
            before.attention_norm.to_empty(device="cpu")
            model.layers = nn.ModuleDict({str(layer - 1): before})
            # Norms stay as the dense checkpoint has them.
            _fill_parts(model, self._spec, self._contents, partial(_is_norm_of, layer - 1))
            own.read_beside(before)
        return own

    def _made(self, layer: int, method: LinearMethod) -> DecoderLayer:
        return DecoderLayer(
            spec=self._spec,
            layer=layer,
            backend=get_backend("torch"),
            dtype=torch.float32,
            method=method,
        )

    def _run(self, layer: DecoderLayer, number: int, batch: range) -> list[tuple[Tensor, Tensor]]:
        """Return the two addends of the streams of some sequences behind a layer."""
        own = slice(batch.start, batch.stop)
        lengths, rows = self._lengths[own], [each for each in self._rows[own] if each is not None]
        metadata = self._metadata(batch)
        assert metadata.positions is not None
        rope, group = layer.attention.rope, layer.attention.group
        angles = metadata.positions if rope is None else self._tables[rope][metadata.positions]
        before, residual = torch.cat(self.streams[own]), None
        if self._is_beside(number):
            before, residual = map(torch.cat, zip(*self._addends[own], strict=True))
        x, residual = layer(before, residual, angles, self._caches[group], metadata.of_group(group))
        row = torch.cat(rows)[:, number] if rows else None
        x, residual = layer.finish(x, residual, row)
        return list(zip(x.split(lengths), residual.split(lengths), strict=True))

    def _metadata(self, batch: range) -> AttentionMetadata:
        """The sequences of a batch, each of which has all tokens in one block of each group."""
        blocks = self._blocks(batch)
        lengths = self._lengths[batch.start : batch.stop]
        positions = [torch.arange(length) for length in lengths]
        size = max(self._lengths)
        slots = [block * size + own for block, own in zip(blocks, positions, strict=True)]
        num_states = len(self._spec.kv_groups) - self._spec.num_token_groups
        states = torch.tensor([[[-1, block] for block in blocks]] * num_states, dtype=torch.int32)
        first = AttentionMetadata(
            query_start_loc=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=torch.tensor(blocks, dtype=torch.int32).unsqueeze(1),
            slot_mapping=torch.cat(slots),
            query_lens_list=tuple(lengths),
            seq_lens_list=tuple(lengths),
            states=states if num_states else None,
            positions=torch.cat(positions),
        )
        return replace(first, others=(first,) * (self._spec.num_token_groups - 1))

    def _blocks(self, batch: range) -> range:
        """Where keys and values are. Layers that read another one's find them there."""
        return batch if self._spec.shares_kv else range(len(batch))

    def _with_peaks(self, peaks: KvPeaks, layer: int, batch: range) -> KvPeaks:
        if not isinstance(self._spec.layers[layer].mixer, AttentionSpec):
            return peaks
        group, place = self._spec.kv_place(layer)
        place = place if self._spec.shares_kv else 0
        for block, sequence in zip(self._blocks(batch), batch, strict=True):
            own = self._caches[group][block, place, ..., : self._lengths[sequence], :]
            key, value = own.abs().amax(dim=(1, 2, 3)).tolist()
            peaks = KvPeaks(max(peaks.key, key), max(peaks.value, value))
        return peaks


class _Watched:
    """A product that sums up the Hessian of its inputs."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.hessian: Hessian | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        if self.hessian is not None:
            self.hessian.add(x)
        return linear(x, self.weight)

    def taken(self) -> Hessian:
        """Return the Hessian, and sum up no further."""
        found, self.hessian = self.hessian, None
        assert found is not None
        return found


class _Watching(MadeOfDense):
    """Makes all linears watched."""

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return _Watched(linear.weight)


def _rounds(watched: dict[str, _Watched]) -> Iterator[dict[str, _Watched]]:
    """All of them, in as many at a time as there is memory for their Hessians."""
    some: dict[str, _Watched] = {}
    size = 0
    for path, each in watched.items():
        own = 4 * each.weight.shape[1] ** 2
        if some and size + own > _HESSIAN_BYTES:
            yield some
            some, size = {}, 0
        some[path] = each
        size += own
    yield some


def _is_norm_of(layer: int, part: WeightPart) -> bool:
    """Whether a weight is that of the norm in front of a layer's mixer."""
    return part.layer == layer and "attention_norm" in part.module.split(".")


def _without_layers(spec: DecoderSpec, contents: Contents) -> CausalLM:
    """A model whose layers have no memory, up to its first layer."""
    with torch.device("meta"):
        model = CausalLM(spec=spec, backend=get_backend("torch"), dtype=torch.float32, method=DENSE)
    for name, own in model.named_children():
        if name not in (LAYERS, "norm"):
            own.to_empty(device="cpu")
    for name, parameter in list(model.named_parameters(recurse=False)):
        if name not in ("lm_head", "lm_head_bias"):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype)
            setattr(model, name, nn.Parameter(empty, requires_grad=False))
    behind = set(_BEHIND)
    if spec.is_tied and name_of(contents.names, EMBEDDING) not in _own_names(spec, contents):
        model.lm_head = model.embedding
        behind.remove(HEAD)
    _fill_parts(model, spec, contents, lambda part: part.layer is None and part not in behind)
    return model


def _own_names(spec: DecoderSpec, contents: Contents) -> set[str]:
    return {own_name(spec, contents.names, stored) for stored in contents.tensors}


def _fill_parts(
    model: nn.Module, spec: DecoderSpec, contents: Contents, wants: Callable[[WeightPart], bool]
) -> None:
    """Load some parts of a model."""
    names, wanted = contents.names, {}
    for stored, found in contents.tensors.items():
        name = own_name(spec, names, stored)
        if name in names and wants(names[name].part):
            wanted[stored] = found
    paths = {
        (each.codes if isinstance(each, StoredMatrix) else each).path for each in wanted.values()
    }
    for path, stored, tensor in read_tensors(Contents(wanted, names), sorted(paths)):
        name = own_name(spec, names, stored)
        fill(model, names[name], tensor, path, name)


def _make_caches(spec: DecoderSpec, num_blocks: int, block_size: int) -> list[Tensor]:
    """Memory for keys, values and states by group; of all layers if they read each other's."""
    caches = []
    for number, layers in enumerate(spec.kv_groups):
        shape: tuple[int, ...]
        if number < spec.num_token_groups:
            kinds, heads, width = spec.attentions[layers[0]].kv_shape
            shape = kinds, heads, block_size, width
        else:
            shape = (spec.recurrences[layers[0]].state_size,)
        num_own = len(layers) if spec.shares_kv else 1
        caches.append(torch.zeros(num_blocks, num_own, *shape))
    return caches
