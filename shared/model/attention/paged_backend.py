"""The attention backends: the same two kernels, in the implementation that gives the name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.paged_attention.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Writes the new keys and values, then attends over the paged context."""

    #: `torch` or `triton`.
    name: str
    _workspace: Workspace = field(default_factory=Workspace, init=False, repr=False, compare=False)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_cache: Tensor,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        kv_write(k, v, kv_cache, layer, metadata.slot_mapping, implementation=self.name)
        return paged_attention(
            q,
            kv_cache,
            layer,
            metadata,
            scale=scale,
            sliding_window=sliding_window,
            implementation=self.name,
            workspace=self._workspace,
        )
