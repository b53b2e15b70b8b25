"""Decoders as PyTorch modules, built from a DecoderSpec.

Knows tensors and paged KV; no requests, sampling or scheduling.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from kernels.rope_kv_write.norms import HeadNorms
from shared.model.layers import GatedMLP, RMSNorm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.rope_table import cos_sin_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.spec import DecoderSpec


class Attention(nn.Module):
    """Grouped-query attention with optional biases and query/key norms."""

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
        own = spec.layers[layer].mixer
        #: This layer's KV cache, and its index there.
        self.group, self.place = spec.kv_place(layer)
        self.head_dim = own.head_dim
        self.window = own.window
        self.backend = backend
        self.qkv = FusedLinear(
            in_size=spec.hidden_size,
            out_sizes=(own.query_size, own.kv_size, own.kv_size),
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
        self.q_norm = self.k_norm = None
        if own.qk_norm:
            self.q_norm = RMSNorm(size=own.head_dim, eps=spec.norm_eps, dtype=dtype)
            self.k_norm = RMSNorm(size=own.head_dim, eps=spec.norm_eps, dtype=dtype)

    def forward(
        self, x: Tensor, cos_sin: Tensor, kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """Map [num_tokens, hidden] to the same shape; write this layer's slots of the cache."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv(x))
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        mixed = self.backend.forward(
            q,
            k,
            v,
            cos_sin,
            kv_cache,
            self.place,
            metadata,
            scale=self.head_dim**-0.5,
            sliding_window=self.window,
            norms=norms,
        )
        out: Tensor = self.output(mixed.flatten(-2))[0]
        return out


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual."""

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
        size, eps, kernels = spec.hidden_size, spec.norm_eps, backend.name
        feed_forward = spec.layers[layer].feed_forward
        self.attention_norm = RMSNorm(size=size, eps=eps, dtype=dtype, implementation=kernels)
        self.attention = Attention(
            spec=spec, layer=layer, backend=backend, dtype=dtype, method=method
        )
        self.mlp_norm = RMSNorm(size=size, eps=eps, dtype=dtype, implementation=kernels)
        self.mlp = GatedMLP(
            hidden=size,
            inner=feed_forward.inner_size,
            bias=feed_forward.bias,
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
        if residual is None:
            x, residual = self.attention_norm(x), x
        else:
            x, residual = self.attention_norm.of_sum(x, residual)
        x = self.attention(x, cos_sin, kv_cache, metadata)
        x, residual = self.mlp_norm.of_sum(x, residual)
        return self.mlp(x), residual


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
        self.dtype = dtype
        shape = (spec.vocab_size, spec.hidden_size)
        self.embedding = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        #: The same layers as `layers`, for PyTorch's own traversal only.
        self.decoder_layers = [
            DecoderLayer(spec=spec, layer=layer, backend=backend, dtype=dtype, method=method)
            for layer in range(spec.num_layers)
        ]
        self.layers = nn.ModuleList(self.decoder_layers)
        self.norm = RMSNorm(
            size=spec.hidden_size,
            eps=spec.norm_eps,
            dtype=dtype,
            implementation=backend.name,
        )
        self.lm_head = self.embedding
        if not spec.is_tied:
            self.lm_head = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        table = cos_sin_table(spec.attention.rope, spec.num_positions, dtype)
        self.cos_sin: Tensor = table.to(self.embedding.device)
        self._captured: dict[int, Tensor] = {}
        self._captured_layers: frozenset[int] = frozenset()

    @property
    def num_weight_bytes(self) -> int:
        """Memory of the weights in bytes."""
        narrow = sum(part.nbytes for part in self.buffers())
        return narrow + sum(weight.nbytes for weight in self.parameters())

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
        cos_sin = self.cos_sin[positions]
        batches = [metadata.of_group(number) for number in range(len(kv_caches))]
        x = embedding(token_ids, self.embedding)
        residual: Tensor | None = None
        if self._captured_layers:
            self._keep(0, x)
        for number, layer in enumerate(self.decoder_layers):
            group = layer.attention.group
            x, residual = layer(x, residual, cos_sin, kv_caches[group], batches[group])
            if self._captured_layers:
                self._keep(number + 1, x, residual)
        assert residual is not None  # there is a layer
        if metadata.wanted is not None:
            x, residual = x[metadata.wanted], residual[metadata.wanted]
        return self.norm.of_sum(x, residual)[0]

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [n, vocab_size] of [n, hidden]."""
        return linear(hidden, self.lm_head).float()

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
        """Return the embeddings [n, hidden] of int64 [n]."""
        return embedding(token_ids, self.embedding)

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
