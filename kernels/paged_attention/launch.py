"""Paged attention in Triton: one kernel for sequences with one new token, one for the others.

A batch that has both kinds takes two launches: a kernel that branches between them would need the
tiles and the registers of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention.decode.launch import launch_decode
from kernels.paged_attention.prefill.launch import launch_prefill

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores
    from kernels.paged_attention.workspace import Workspace


def launch(
    q: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scores: Scores,
    workspace: Workspace,
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`.

    The last dimension of q and the cache must be contiguous, and so must the sinks.
    """
    cache = (
        kv_cache.layer(layer)
        if isinstance(kv_cache, QuantizedCache)
        else (kv_cache[:, layer], None)
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if min(batch.query_lens_list) == 1:
        launch_decode(q, cache, out, batch, scores, workspace)
    if max(batch.query_lens_list) > 1:
        launch_prefill(q, cache, out, batch, scores)
    return out
