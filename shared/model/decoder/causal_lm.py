"""Decoders as PyTorch modules, built from a DecoderSpec.

Knows tensors and paged KV; no requests, sampling or scheduling.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from shared.model.adapted.linears import AdaptedLinears
from shared.model.adapted.paths import takes_adapter
from shared.model.decoder.decoder_layer import DecoderLayer
from shared.model.decoder.experts import Experts
from shared.model.decoder.layer_inputs import make_layer_inputs
from shared.model.decoder.layers import NoNorm, Norm, make_norm
from shared.model.decoder.token_rows import TokenRows
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.rope_table import rotation_tables
from shared.model.spec.norms import NormPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.adapted.base import AdapterWeights
    from shared.model.adapted.linears import PlacedLinears
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.given_embeds import GivenEmbeds
    from shared.model.linear.base import LinearMethod
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.spec.decoder import DecoderSpec


class CausalLM(nn.Module):
    """A whole decoder. Weights are uninitialised until the loader fills them."""

    #: The place of the last layer that keeps something: behind its mixer only wanted tokens are
    #: computed. -1: all are, for layers elsewhere.
    _narrowing: int
    #: Made for the first adapter.
    _adapted: AdaptedLinears | None = None
    #: Rows of the embedding for tokens, and the product with the output head.
    _look_up: Callable[[Tensor, Tensor], Tensor] = staticmethod(embedding)
    _multiply_head: Callable[[Tensor, Tensor, Tensor | None], Tensor] = staticmethod(linear)

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        """Build the modules. `method` is that of all linears in the layers."""
        super().__init__()
        self.spec = spec
        self.backend_name = backend.name
        self.dtype = dtype
        width = spec.embedding_size or spec.hidden_size
        self.embedding = _weight(spec.num_embedding_rows, width, dtype=dtype)
        self.inputs = make_layer_inputs(
            spec, dtype=dtype, implementation=backend.name, method=method
        )
        self.decoder_layers = [
            DecoderLayer(spec=spec, layer=layer, backend=backend, dtype=dtype, method=method)
            for layer in spec.computed
        ]
        _join(spec, self.decoder_layers)
        #: For PyTorch's own traversal only.
        self.layers = _numbered(spec, self.decoder_layers)
        self.norm = _final_norm(spec, dtype, backend.name)
        self.lm_head = self.embedding
        if not spec.is_tied:
            self.lm_head = _weight(spec.num_head_rows, width, dtype=dtype)
        self._method = method
        #: The output head as a checkpoint stores it; `lm_head` has no values then.
        self.stored_head: AnyMatrix | None = None
        has_bias = spec.has_head_bias and spec.ends
        self.lm_head_bias = _weight(spec.num_head_rows, dtype=dtype) if has_bias else None
        #: Learned ones: [num_rows, hidden].
        self.positions: nn.Parameter | None = None
        if spec.learned_positions is not None and spec.begins:
            size = spec.learned_positions.num_rows, spec.hidden_size
            self.positions = _weight(*size, dtype=dtype)
        self.project_in = self.project_out = cast("FusedLinear | None", None)
        if spec.embedding_size is not None and spec.begins:
            self.project_in = _projection(width, spec.hidden_size, dtype)
        if spec.embedding_size is not None and spec.ends:
            self.project_out = _projection(spec.hidden_size, width, dtype)
        self._needs_positions = spec.has_temperatures
        self._narrowing = _last_keeping(spec, spec.computed) if spec.ends else -1
        self._captured: dict[int, Tensor] = {}
        self._captured_layers: frozenset[int] = frozenset()

    @cached_property
    def cos_sin(self) -> list[Tensor]:
        """By rotation of the decoder. Native kernels have tables of their own."""
        device = self.embedding.device
        return [table.to(device) for table in rotation_tables(self.spec, self.dtype)]

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the weights in bytes."""
        narrow = sum(part.nbytes for part in self.buffers())
        return narrow + sum(weight.nbytes for weight in self.parameters())

    @property
    def is_recordable(self) -> bool:
        """See `CausalModel.is_recordable`."""
        return all(
            layer.attention.is_recordable
            and (not isinstance(layer.mlp, Experts) or layer.mlp.is_recordable)
            for layer in self.decoder_layers
        )

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[PagedCache],
        metadata: AttentionMetadata,
        given: GivenEmbeds | None = None,
    ) -> Tensor:
        """Return hidden states [num_wanted, hidden] after the last norm; by default of all tokens.

        token_ids, positions: int64 [num_tokens], packed as `metadata` says. Writes the KV of all
        tokens into `kv_caches`, one per group of the spec.
        """
        self._captured = {}
        narrowing = self._narrowing
        wanted = metadata.wanted if narrowing >= 0 else None
        if wanted is not None and max(self._captured_layers, default=0) > narrowing:
            every = replace(metadata, wanted=None)
            return self.forward(token_ids, positions, kv_caches, every, given)[wanted]
        if self._adapted is not None:
            self._adapted.begin(metadata.adapters, None if wanted is None else metadata.wanted_list)
        x, inputs = self.enter(token_ids, positions, given)
        rows = self._rows(positions, inputs, metadata, len(kv_caches))
        residual: Tensor | None = None
        if self._captured_layers:
            self._keep(0, x)
        for number, layer in enumerate(self.decoder_layers):
            left = wanted if number == narrowing else None
            x, residual = rows.through(layer, x, residual, kv_caches, wanted=left)
            if left is not None:
                if not len(x):
                    return x
                rows = rows.only(left, metadata.wanted_list)
            x, residual = layer.finish(x, residual, rows.input_of(number))
            if self._captured_layers:
                self._keep(number + 1, x, residual)
        assert residual is not None  # there is a layer
        return self.leave(x, residual)

    def _rows(
        self,
        positions: Tensor,
        inputs: Tensor | None,
        metadata: AttentionMetadata,
        num_groups: int,
    ) -> TokenRows:
        """All tokens of a step."""
        batches = [metadata.of_group(number) for number in range(num_groups)]
        if metadata.wanted is not None:
            batches = [replace(batch, wanted=None) for batch in batches]
        if self._needs_positions:
            batches = [replace(batch, positions=positions) for batch in batches]
        return TokenRows(positions, [table[positions] for table in self.cos_sin], inputs, batches)

    def enter(
        self, token_ids: Tensor, positions: Tensor, given: GivenEmbeds | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the first layer reads [n, hidden], and the layers' own inputs, if any."""
        x = self.embed(token_ids, given)
        if self.positions is not None and self.spec.learned_positions is not None:
            x = x + self.positions[positions + self.spec.learned_positions.first_row]
        return x, None if self.inputs is None else self.inputs(token_ids, x)

    def leave(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the hidden states of what the last layer returns."""
        return self.norm.of_sum(x, residual)[0]

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] to float32 [n, vocab_size]."""
        spec = self.spec
        if self.project_out is not None:
            (hidden,) = self.project_out(hidden)
        logits = self._multiply_head(hidden, self.lm_head, self.lm_head_bias)
        if spec.logit_multiplier != 1:
            logits = logits * spec.logit_multiplier
        if spec.logit_softcap is not None:
            logits = (logits / spec.logit_softcap).tanh() * spec.logit_softcap
        return logits.float()

    @property
    def adapter_linears(self) -> Mapping[str, tuple[int, int]]:
        """See `AdaptableModel.adapter_linears`."""
        return self._taking_adapters().sizes

    def prepare_adapter(self, weights: AdapterWeights) -> PlacedLinears:
        """See `AdaptableModel.prepare_adapter`."""
        return self._taking_adapters().prepare(weights)

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableModel.set_adapter`."""
        self._taking_adapters().put(slot, {})
        if weights:
            self.prepare_adapter(weights).place(slot)

    def _taking_adapters(self) -> AdaptedLinears:
        """Return the linears that take adapters, looked up once."""
        if self._adapted is not None:
            return self._adapted
        linears = {
            path: module
            for path, module in self.named_modules()
            if isinstance(module, FusedLinear) and takes_adapter(path)
        }
        self._adapted = AdaptedLinears(
            linears,
            dtype=self.dtype,
            device=self.embedding.device,
            implementation=self.backend_name,
        )
        return self._adapted

    def keeps_head(self, matrix: AnyMatrix) -> bool:
        """Return whether a stored matrix can be `stored_head`."""
        is_plain = matrix.inputs is None and matrix.column_groups is None
        return self._method.keeps_head and is_plain and self._method.keeps(matrix)

    def of_layers(self, numbers: Sequence[int]) -> CausalLM:
        """Return a model of these layers only, on the same weights."""
        short = copy.copy(self)
        first = self.spec.computed.start
        short.decoder_layers = [self.decoder_layers[number - first] for number in numbers]
        short._narrowing = _last_keeping(self.spec, numbers) if self.spec.ends else -1
        return short

    @property
    def hidden_dtype(self) -> torch.dtype:
        """Dtype of hidden states in `forward` and `compute_logits`."""
        return self.dtype

    def embed(self, token_ids: Tensor, given: GivenEmbeds | None = None) -> Tensor:
        """The embeddings [n, hidden] of int64 [n]; some are `given`."""
        rows, spec = self._look_up(token_ids, self.embedding), self.spec
        if given is not None and spec.multiplies_given:
            rows = given.placed_in(rows)
        if spec.embedding_multiplier != 1:
            # The factor is rounded to the weights' dtype, as in transformers.
            rows = rows * rows.new_full((), spec.embedding_multiplier)
        if given is not None and not spec.multiplies_given:
            rows = given.placed_in(rows)
        return rows if self.project_in is None else self.project_in(rows)[0]

    @property
    def embeds_width(self) -> int:
        """See `CausalModel.embeds_width`."""
        return self.spec.embeds_width

    @property
    def why_no_embeds(self) -> str | None:
        """See `CausalModel.why_no_embeds`."""
        return self.spec.why_no_embeds

    def capture_layers(self, layers: tuple[int, ...]) -> None:
        """Keep the residual stream at the input of these layers in every `forward` from now on.

        `num_layers` means the output of the last layer.
        """
        self._captured_layers = frozenset(layers)
        self._captured = {}

    def captured(self) -> dict[int, Tensor]:
        """Return the states of the last `forward` by layer: [num_tokens, hidden], the caller's."""
        return self._captured

    def _keep(self, layer: int, x: Tensor, residual: Tensor | None = None) -> None:
        if layer in self._captured_layers:
            self._captured[layer] = x if residual is None else x + residual


def _last_keeping(spec: DecoderSpec, numbers: Sequence[int]) -> int:
    """Return the place, among these layers, of the last that keeps something; else the last."""
    places = (place for place, number in enumerate(numbers) if spec.keeps(number))
    return max(places, default=len(numbers) - 1)


def _numbered(spec: DecoderSpec, layers: Sequence[DecoderLayer]) -> nn.ModuleList:
    """The layers by their numbers; nothing for those of other parts."""
    found = nn.ModuleList(nn.Identity() for _ in spec.layers)
    for number, layer in zip(spec.computed, layers, strict=True):
        found[number] = layer
    return found


def _join(spec: DecoderSpec, layers: Sequence[DecoderLayer]) -> None:
    """Let layers read what those before them read, where they are beside each other."""
    for place, number in enumerate(spec.computed):
        if spec.layers[number].norms is NormPlace.BESIDE:
            layers[place].read_beside(layers[place - 1])


def _final_norm(spec: DecoderSpec, dtype: torch.dtype, implementation: str) -> Norm:
    if not (spec.has_final_norm and spec.ends):
        return NoNorm()
    return make_norm(spec.norm, size=spec.hidden_size, dtype=dtype, implementation=implementation)


def _weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter that is to be filled."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _projection(in_size: int, out_size: int, dtype: torch.dtype) -> FusedLinear:
    return FusedLinear(in_size=in_size, out_sizes=(out_size,), bias=False, dtype=dtype)
