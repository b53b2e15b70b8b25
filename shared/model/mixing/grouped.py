"""Grouped-query attention, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.paged_attention.scores import Scores
from kernels.rope_kv_write.norms import HeadNorms
from shared.model.layers import Norm, RMSNorm, make_qk_norm
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear
from shared.model.mixers import QkNorm

if TYPE_CHECKING:
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
