"""The attention backends: the same two functions in the named implementation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.kv_write import kv_write
from kernels.latent_attention import latent_attention
from kernels.paged_attention import paged_attention
from kernels.paged_attention.workspace import Workspace
from kernels.rope_kv_write import rope_kv_write
from kernels.rotary import rotate

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import PagedCache
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
        k: Tensor | None,
        v: Tensor | None,
        cos_sin: Tensor,
        kv_cache: PagedCache,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scores: Scores,
        norms: HeadNorms | None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        if k is None or v is None:
            rotated = rotate(q, cos_sin)
        else:
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
            scores,
            implementation=self.name,
            workspace=self._workspace,
        )

    def forward_latent(
        self,
        queries: LatentQueries,
        rows: Tensor,
        weights: LatentWeights,
        kv_cache: PagedCache,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend.forward_latent`."""
        kv_write(rows[:, None], None, kv_cache, layer, metadata.slot_mapping)
        return latent_attention(
            queries,
            weights,
            kv_cache,
            layer,
            metadata,
            scale=scale,
            implementation=self.name,
            workspace=self._workspace,
        )
