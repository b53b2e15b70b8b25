"""Grouped-query attention, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.paged_attention.scores import Scores
from kernels.rope_kv_write.norms import HeadNorms
from shared.model.decoder.layers import Norm, RMSNorm, make_norm, make_qk_norm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.spec.mixers import QkNorm

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionBackend, AttentionMetadata
    from shared.model.linear.base import LinearMethod
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.spec.mixers import TemperatureSpec


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
        #: PyTorch computes chunks, by the lengths on the host.
        self.is_recordable = not own.is_chunked
        #: Which of the decoder's rotations is this layer's.
        self.rope: int | None = spec.ropes.index(own.rope)
        self.spec = own
        self.backend = backend
        hidden, make = spec.hidden_size, partial(FusedLinear, dtype=dtype, method=method)
        self.qkv = make(in_size=hidden, out_sizes=own.projection_sizes, bias=own.qkv_bias)
        self.output = make(in_size=own.query_size, out_sizes=(hidden,), bias=own.output_bias)
        self.head_gate: FusedLinear | None = None
        if own.has_head_gates:
            self.head_gate = make(in_size=hidden, out_sizes=(own.num_heads,), bias=False)
        self.sinks: nn.Parameter | None = None
        if own.has_sinks:
            sinks = torch.empty(own.num_heads, dtype=torch.float32)
            self.sinks = nn.Parameter(sinks, requires_grad=False)
        self.q_norm: Norm | None = None
        self.k_norm: Norm | None = None
        self.v_norm: Norm | None = None
        if own.qk_norm is not None:
            norm = spec.qk_norm(own)
            self.q_norm = make_qk_norm(own.qk_norm, norm, own.num_heads, own.head_dim, dtype)
            if own.kv_source is None:
                self.k_norm = make_qk_norm(own.qk_norm, norm, own.num_kv_heads, own.head_dim, dtype)
        if own.has_value_norm and own.kv_source is None:
            plain = replace(spec.norm, has_weight=False, has_bias=False)
            self.v_norm = make_norm(plain, size=own.head_dim, dtype=dtype)

    def forward(
        self, x: Tensor, cos_sin: Tensor, kv_cache: PagedCache, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] to the same; writes this layer's slots of the cache, if any."""
        parts, gate, norms = self._project(x)
        q, (k, v) = parts[0], parts[1:] or (None, None)
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
        if self.head_gate is not None:
            mixed = mixed * self.head_gate(x)[0].sigmoid().unsqueeze(-1)
        mixed = mixed.flatten(-2)
        if gate is not None:
            mixed = mixed * gate.sigmoid()
        out: Tensor = self.output(mixed)[0]
        return out

    def _project(self, x: Tensor) -> tuple[list[Tensor], Tensor | None, HeadNorms | None]:
        """Queries, keys and values [num_tokens, heads, head_dim], gates, norms to be applied.

        Of a layer without keys and values of its own, the list has queries alone.
        """
        own = self.spec
        parts, gate = list(self.qkv(x)), None
        if own.has_gate:
            parts[0], gate = parts[0].split(own.query_size, dim=-1)
        if own.clip is not None:
            parts = [part.clamp(-own.clip, own.clip) for part in parts]
        if own.values_are_keys and own.kv_source is None:
            parts.append(parts[1])
        if own.qk_norm is QkNorm.WHOLE:
            parts = self._normalised(parts)
        parts = [part.unflatten(-1, (-1, own.head_dim)) for part in parts]
        norms = self._fused_norms()
        if norms is None and own.qk_norm is not QkNorm.WHOLE:
            parts = self._normalised(parts)
        if self.v_norm is not None:
            parts[2] = self.v_norm(parts[2])
        return parts, gate, norms

    def _normalised(self, parts: list[Tensor]) -> list[Tensor]:
        """Queries and keys behind their norms, if they have any, and values as they are."""
        norms = (self.q_norm, self.k_norm, None)[: len(parts)]
        return [
            part if norm is None else norm(part) for part, norm in zip(parts, norms, strict=True)
        ]

    def _fused_norms(self) -> HeadNorms | None:
        """Return the norms that are computed with the rotation; None if they come before."""
        if self.spec.qk_norm is QkNorm.WHOLE or self.spec.temperature is not None:
            return None
        if not isinstance(self.q_norm, RMSNorm) or not isinstance(self.k_norm, RMSNorm):
            return None
        return HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)


def _factors(own: TemperatureSpec, positions: Tensor) -> Tensor:
    """Return float32 [num_tokens, 1, 1], by which queries are multiplied."""
    steps = ((positions + 1) // own.step).float()
    return (1.0 + own.scale * steps.log1p())[:, None, None]
