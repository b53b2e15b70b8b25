"""The attention backends: the same two functions in the named implementation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.kv_write import kv_write
from kernels.kv_write.cache import QuantizedCache
from kernels.latent_attention import latent_attention
from kernels.paged_attention import paged_attention
from kernels.paged_attention.workspace import Workspace
from kernels.rope_kv_write import rope_kv_write

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.latent_attention import LatentQueries, LatentWeights
    from kernels.paged_attention.scores import Scores
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
        scores: Scores,
        norms: HeadNorms | None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        cache = kv_cache if kv_cache.dtype == q.dtype else QuantizedCache.over(kv_cache)
        rotated = rope_kv_write(
            q,
            k,
            v,
            cos_sin,
            cache,
            layer,
            metadata.slot_mapping,
            norms=norms,
            implementation=self.name,
        )
        return paged_attention(
            rotated,
            cache,
            layer,
            metadata,
            scores,
            implementation=self.name,
            workspace=self._workspace,
        )

    def forward_latent(
        self,
        queries: LatentQueries,
        rows: Tensor,
        weights: LatentWeights,
        kv_cache: Tensor,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend.forward_latent`."""
        cache = kv_cache if kv_cache.dtype == rows.dtype else QuantizedCache.over(kv_cache)
        kv_write(rows[:, None], None, cache, layer, metadata.slot_mapping)
        return latent_attention(
            queries,
            weights,
            cache,
            layer,
            metadata,
            scale=scale,
            implementation=self.name,
            workspace=self._workspace,
        )
