"""Decoders as PyTorch modules, built from a DecoderSpec.

Knows tensors and paged KV; no requests, sampling or scheduling.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from kernels.paged_attention.scores import Scores
from kernels.rope_kv_write.norms import HeadNorms
from shared.model.experts import Experts, make_feed_forward
from shared.model.latent_attention import LatentAttention
from shared.model.layers import NoNorm, Norm, RMSNorm, make_norm, make_qk_norm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.mixers import AttentionSpec, LatentAttentionSpec, QkNorm
from shared.model.recurrent import RecurrentMixer, make_recurrent
from shared.model.rope_table import rotation_tables
from shared.model.spec import PLACES, NormPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.mixers import TemperatureSpec
    from shared.model.spec import DecoderSpec


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        super().__init__()
        own = spec.layers[layer].attention
        #: This layer's KV cache, and its index there.
        self.group, self.place = spec.kv_place(layer)
        #: Which of the decoder's rotations is this layer's.
        self.rope: int | None = spec.ropes.index(own.rope)
        self.spec = own
        self.backend = backend
        #: PyTorch computes chunks, by the lengths on the host.
        self.is_recordable = not own.is_chunked
        self.qkv = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.projected_query_size, own.kv_size, own.kv_size),
            bias=own.qkv_bias,
            dtype=dtype,
            method=method,
        )
        self.output = FusedLinear(
            in_size=own.query_size,
            out_sizes=(spec.hidden_size,),
            bias=own.output_bias,
            dtype=dtype,
            method=method,
        )
        self.sinks: nn.Parameter | None = None
        if own.has_sinks:
            sinks = torch.empty(own.num_heads, dtype=torch.float32)
            self.sinks = nn.Parameter(sinks, requires_grad=False)
        self.q_norm: Norm | None = None
        self.k_norm: Norm | None = None
        if own.qk_norm is not None:
            self.q_norm, self.k_norm = (
                make_qk_norm(own.qk_norm, spec.qk_norm(own), num_heads, own.head_dim, dtype)
                for num_heads in (own.num_heads, own.num_kv_heads)
            )

    def forward(
        self, x: Tensor, cos_sin: Tensor, kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] to the same; writes this layer's slots of the cache."""
        q, k, v, gate, norms = self._project(x)
        if self.spec.temperature is not None:
            assert metadata.positions is not None  # see `CausalLM.forward`
            q = (q * _factors(self.spec.temperature, metadata.positions)).to(q.dtype)
        mixed = self.backend.forward(
            q,
            k,
            v,
            cos_sin,
            kv_cache,
            self.place,
            metadata,
            scores=Scores(
                scale=self.spec.scale,
                window=self.spec.window,
                is_chunked=self.spec.is_chunked,
                softcap=self.spec.softcap,
                sinks=self.sinks,
            ),
            norms=norms,
        )
        mixed = mixed.flatten(-2)
        if gate is not None:
            mixed = mixed * gate.sigmoid()
        out: Tensor = self.output(mixed)[0]
        return out

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, HeadNorms | None]:
        """Queries, keys and values [num_tokens, heads, head_dim], gates, norms to be applied."""
        own = self.spec
        q, k, v = self.qkv(x)
        gate: Tensor | None = None
        if own.has_gate:
            q, gate = q.split(own.query_size, dim=-1)
        if own.clip is not None:
            q, k, v = (part.clamp(-own.clip, own.clip) for part in (q, k, v))
        if own.qk_norm is QkNorm.WHOLE and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (-1, own.head_dim)) for part in (q, k, v))
        if self.q_norm is None or self.k_norm is None or own.qk_norm is QkNorm.WHOLE:
            return q, k, v, gate, None
        if not isinstance(self.q_norm, RMSNorm) or not isinstance(self.k_norm, RMSNorm):
            return self.q_norm(q), self.k_norm(k), v, gate, None
        if own.temperature is not None:
            return self.q_norm(q), self.k_norm(k), v, gate, None
        norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return q, k, v, gate, norms


def _factors(own: TemperatureSpec, positions: Tensor) -> Tensor:
    """Return float32 [num_tokens, 1, 1], by which queries are multiplied."""
    steps = ((positions + 1) // own.step).float()
    return (1.0 + own.scale * steps.log1p())[:, None, None]


def _make_mixer(
    *,
    spec: DecoderSpec,
    layer: int,
    backend: AttentionBackend,
    dtype: torch.dtype,
    method: LinearMethod,
) -> Attention | LatentAttention | RecurrentMixer:
    """Return the mixer that a layer's description asks for."""
    own = spec.layers[layer].mixer
    if isinstance(own, LatentAttentionSpec):
        return LatentAttention(
            spec=spec, own=own, layer=layer, backend=backend, dtype=dtype, method=method
        )
    if isinstance(own, AttentionSpec):
        return Attention(spec=spec, layer=layer, backend=backend, dtype=dtype, method=method)
    return make_recurrent(
        spec=spec, layer=layer, dtype=dtype, method=method, implementation=backend.name
    )


class DecoderLayer(nn.Module):
    """A mixer, mostly attention, and a feed-forward, with norms, around a residual."""

    def __init__(
        self,
        *,
        spec: DecoderSpec,
        layer: int,
        backend: AttentionBackend,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
    ) -> None:
        super().__init__()
        own, kernels = spec.layers[layer], backend.name
        self._place, self._multiplier = own.norms, own.residual_multiplier
        self.attention_norm, self.attention_output_norm, self.mlp_norm, self.mlp_output_norm = (
            make_norm(spec.norm, size=spec.hidden_size, dtype=dtype, implementation=kernels)
            if name in PLACES[own.norms]
            else NoNorm()
            for name in (
                "attention_norm",
                "attention_output_norm",
                "mlp_norm",
                "mlp_output_norm",
            )
        )
        self.attention = _make_mixer(
            spec=spec, layer=layer, backend=backend, dtype=dtype, method=method
        )
        self.mlp = make_feed_forward(
            own.feed_forward,
            hidden=spec.hidden_size,
            dtype=dtype,
            implementation=kernels,
            method=method,
        )

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        cos_sin: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """Map [num_tokens, hidden] to the next addend and residual, of the same shape.

        Their addition is left to the next norm, which reads the sum. The first layer gets no
        residual.
        """
        if self._place is NormPlace.SUM:
            return self._normalise_sums(x, residual, cos_sin, kv_cache, metadata)
        if residual is None:
            x, residual = self.attention_norm(x), x
        else:
            x, residual = self.attention_norm.of_sum(x, residual)
        mixed = self.attention(x, cos_sin, kv_cache, metadata)
        if self._place is NormPlace.ALONE:
            return self._scaled(mixed), residual
        if self._place in (NormPlace.PARALLEL, NormPlace.PARALLEL_TWO):
            if self._place is NormPlace.PARALLEL_TWO:
                x = self.mlp_norm(residual)
            return self._scaled(mixed + self.mlp(x)), residual
        mixed = self._scaled(self.attention_output_norm(mixed))
        x, residual = self.mlp_norm.of_sum(mixed, residual)
        return self._scaled(self.mlp_output_norm(self.mlp(x))), residual

    def _normalise_sums(
        self,
        x: Tensor,
        residual: Tensor | None,
        cos_sin: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """As `forward`; nothing is added to what this returns."""
        if residual is not None:
            x = x + residual
        x = self.attention_norm(x + self.attention(x, cos_sin, kv_cache, metadata))
        x = self.mlp_norm(x + self.mlp(x))
        return torch.zeros_like(x), x

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._multiplier == 1 else x * self._multiplier


class CausalLM(nn.Module):
    """A whole decoder. Weights are uninitialised until the loader fills them."""

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
        shape = (spec.vocab_size, spec.embedding_size or spec.hidden_size)
        self.embedding = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        #: The same layers as `layers`, for PyTorch's own traversal only.
        self.decoder_layers = [
            DecoderLayer(spec=spec, layer=layer, backend=backend, dtype=dtype, method=method)
            for layer in range(spec.num_layers)
        ]
        self.layers = nn.ModuleList(self.decoder_layers)
        self.norm: Norm = NoNorm()
        if spec.has_final_norm:
            self.norm = make_norm(
                spec.norm, size=spec.hidden_size, dtype=dtype, implementation=backend.name
            )
        self.lm_head = self.embedding
        if not spec.is_tied:
            self.lm_head = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.lm_head_bias = _optional(spec.vocab_size if spec.has_head_bias else None, dtype=dtype)
        #: Learned ones: [num_rows, hidden].
        rows = None if spec.learned_positions is None else spec.learned_positions.num_rows
        self.positions = _optional(rows, spec.hidden_size, dtype=dtype)
        self.project_in: FusedLinear | None = None
        self.project_out: FusedLinear | None = None
        if spec.embedding_size is not None:
            ends = spec.embedding_size, spec.hidden_size
            self.project_in, self.project_out = (
                FusedLinear(in_size=in_size, out_sizes=(out_size,), bias=False, dtype=dtype)
                for in_size, out_size in (ends, ends[::-1])
            )
        #: By rotation of the decoder.
        self.cos_sin = [table.to(self.embedding.device) for table in rotation_tables(spec, dtype)]
        self._needs_positions = spec.has_temperatures
        self._captured: dict[int, Tensor] = {}
        self._captured_layers: frozenset[int] = frozenset()

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
        kv_caches: Sequence[Tensor],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Return hidden states [num_wanted, hidden] after the last norm; by default of all tokens.

        token_ids, positions: int64 [num_tokens], packed as `metadata` says. Writes the KV of all
        tokens into `kv_caches`, one per group of the spec.
        """
        self._captured = {}
        cos_sin = [table[positions] for table in self.cos_sin]
        batches = [metadata.of_group(number) for number in range(len(kv_caches))]
        if self._needs_positions:
            batches = [replace(batch, positions=positions) for batch in batches]
        x = self.embed(token_ids)
        if self.positions is not None and self.spec.learned_positions is not None:
            x = x + self.positions[positions + self.spec.learned_positions.first_row]
        residual: Tensor | None = None
        if self._captured_layers:
            self._keep(0, x)
        for number, layer in enumerate(self.decoder_layers):
            group, rope = layer.attention.group, layer.attention.rope
            angles = positions if rope is None else cos_sin[rope]
            x, residual = layer(x, residual, angles, kv_caches[group], batches[group])
            if self._captured_layers:
                self._keep(number + 1, x, residual)
        assert residual is not None  # there is a layer
        if metadata.wanted is not None:
            x, residual = x[metadata.wanted], residual[metadata.wanted]
        return self.norm.of_sum(x, residual)[0]

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] to float32 [n, vocab_size]."""
        spec = self.spec
        if self.project_out is not None:
            (hidden,) = self.project_out(hidden)
        logits = linear(hidden, self.lm_head, self.lm_head_bias)
        if spec.logit_multiplier != 1:
            logits = logits * spec.logit_multiplier
        if spec.logit_softcap is not None:
            logits = (logits / spec.logit_softcap).tanh() * spec.logit_softcap
        return logits.float()

    def first_layers(self, count: int) -> CausalLM:
        """Return a model of the first layers only, on the same weights."""
        short = copy.copy(self)
        short.decoder_layers = self.decoder_layers[:count]
        return short

    @property
    def hidden_dtype(self) -> torch.dtype:
        """Dtype of hidden states in `forward` and `compute_logits`."""
        return self.dtype

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings [n, hidden] of int64 [n]."""
        rows = embedding(token_ids, self.embedding)
        if self.project_in is not None:
            (rows,) = self.project_in(rows)
        if self.spec.embedding_multiplier == 1:
            return rows
        # The factor is rounded to the weights' dtype, as in transformers.
        return rows * rows.new_tensor(self.spec.embedding_multiplier)

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


def _optional(rows: int | None, *columns: int, dtype: torch.dtype) -> nn.Parameter | None:
    """A parameter [rows, columns] that is to be filled; None without rows."""
    if rows is None:
        return None
    return nn.Parameter(torch.empty(rows, *columns, dtype=dtype), requires_grad=False)
