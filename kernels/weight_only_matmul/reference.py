"""Products with packed weights, in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.weight_only_matmul.weight import unpack

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.weight_only_matmul.weight import PackedWeight


def weight_only_matmul(x: Tensor, weight: PackedWeight) -> Tensor:
    """See `kernels.weight_only_matmul.weight_only_matmul`; here products are in float32."""
    return (x.float() @ unpack(weight).T).to(x.dtype)
