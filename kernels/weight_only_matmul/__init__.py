"""Products of few tokens with a weight of 4 or 8 bits: bound by reading the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.paged_attention.workspace import Workspace
from kernels.weight_only_matmul import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.weight_only_matmul.packing import PackedWeight


def weight_only_matmul(
    x: Tensor,
    weight: PackedWeight,
    *,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """x @ weight.T with products in x's type and sums in float32, rounded to x's type.

    x: [num_tokens, in_features] in float32, bfloat16 or float16. Returns [num_tokens,
    out_features]. Any number of tokens is right, but beyond 64 `quantized_matmul` is the faster
    way. The workspace saves allocations, and is needed to capture a graph.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    if x.ndim != 2 or x.shape[1] != weight.in_features:
        raise ValueError(f"x {tuple(x.shape)} does not fit {weight.in_features} input features")
    if implementation == "torch":
        return reference.weight_only_matmul(x, weight)
    if implementation == "triton":
        from kernels.weight_only_matmul.launch import launch  # noqa: PLC0415 Triton is optional

        return launch(x, weight, workspace or Workspace())
    raise ValueError(f"weight_only_matmul has no implementation {implementation!r}")
