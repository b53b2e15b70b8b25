"""Attention of whole texts equals PyTorch's, at sizes that fill no panel and no block."""

from __future__ import annotations

import pytest
import torch

from shared.model.encoders.products import NativeAttention
from shared.model.encoders.whole_attention import whole_attention
from shared.model.native.threads import LibraryThreads, ThreadPlan


@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "head_dim", "window"),
    [
        ([5, 1, 37], 3, 1, 12, None),
        ([40, 40, 130], 4, 2, 20, 7),
        ([70], 2, 2, 33, 64),
        ([200, 33], 2, 1, 64, 1),
        ([300], 1, 1, 70, 33),
    ],
)
def test_attention(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    torch.manual_seed(2)
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    rows = torch.randn(sum(lengths), sum(sizes))
    q, k, v = (part.unflatten(-1, (-1, head_dim)) for part in rows.split(sizes, -1))
    scale = head_dim**-0.5
    native = NativeAttention(LibraryThreads(ThreadPlan(2)))
    for _ in range(2):  # the second time in memory that is not zero
        got = native(q, k, v, lengths, scale=scale, window=window)
        wanted = whole_attention(q, k, v, lengths, scale=scale, window=window)
        torch.testing.assert_close(got, wanted, atol=3e-6, rtol=1e-5)
    alone = native(
        *(part[: lengths[0]] for part in (q, k, v)), lengths[:1], scale=scale, window=window
    )
    assert torch.equal(alone, got[: lengths[0]])  # no bit depends on the other texts
