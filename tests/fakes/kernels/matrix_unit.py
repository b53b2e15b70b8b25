"""Whether products go through the processor's matrix unit here."""

from __future__ import annotations

from functools import cache

import torch

from shared.model.encoders.products import NativeProduct
from shared.model.native.threads import LibraryThreads, ThreadPlan


@cache
def has_matrix_unit() -> bool:
    """Float32 weights are kept in parts of bfloat16 there."""
    weight = torch.zeros(32, 32)
    return NativeProduct(LibraryThreads(ThreadPlan(1)), weight, None).num_bytes > 5 * weight.numel()
