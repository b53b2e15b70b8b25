"""The attention backends: the same two functions in the named implementation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kernels.kv_write_quantized import kv_write_quantized
from kernels.kv_write_quantized.cache import QuantizedCache
from kernels.paged_attention import paged_attention
from kernels.paged_attention.workspace import Workspace
from kernels.paged_attention_quantized import paged_attention_quantized
from kernels.rope_kv_write import rope_kv_write

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.rope_kv_write.norms import HeadNorms
    from shared.model.attention.base import AttentionMetadata


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Rotates, writes the new keys and values, then attends over the paged context."""

    #: `torch` or `triton`.
    name: str
    _workspace: Workspace = field(default_factory=Workspace, init=False, repr=False, compare=False)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        kv_cache: Tensor,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        norms: HeadNorms | None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        if kv_cache.dtype != q.dtype:
            return self._forward_quantized(
                q,
                k,
                v,
                cos_sin,
                QuantizedCache.over(kv_cache),
                layer,
                metadata,
                scale=scale,
                sliding_window=sliding_window,
                norms=norms,
            )
        rotated = rope_kv_write(
            q,
            k,
            v,
            cos_sin,
            kv_cache,
            layer,
            metadata.slot_mapping,
            norms=norms,
            implementation=self.name,
        )
        return paged_attention(
            rotated,
            kv_cache,
            layer,
            metadata,
            scale=scale,
            sliding_window=sliding_window,
            implementation=self.name,
            workspace=self._workspace,
        )

    def _forward_quantized(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        cache: QuantizedCache,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Do as `forward` for 8 bits. Rotated keys pass through memory once more."""
        num_tokens, num_kv_heads, head_dim = k.shape
        rotated_kv = k.new_empty((1, 1, 2, num_kv_heads, num_tokens, head_dim))
        rotated = rope_kv_write(
            q,
            k,
            v,
            cos_sin,
            rotated_kv,
            0,
            torch.arange(num_tokens, device=k.device),
            norms=norms,
            implementation=self.name,
        )
        new_keys, new_values = rotated_kv[0, 0].transpose(1, 2)
        kv_write_quantized(
            new_keys,
            new_values,
            cache,
            layer,
            metadata.slot_mapping,
            implementation=self.name,
        )
        return paged_attention_quantized(
            rotated,
            cache,
            layer,
            metadata,
            scale=scale,
            sliding_window=sliding_window,
            implementation=self.name,
            workspace=self._workspace,
        )
