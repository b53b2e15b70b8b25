"""Products of few tokens with a weight in 4 or 8 bits: reading the weight bounds their speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.paged_attention.workspace import Workspace
from kernels.weight_only_matmul import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.weight_only_matmul.weight import PackedWeight


def weight_only_matmul(
    x: Tensor,
    weight: PackedWeight,
    *,
    implementation: str = "torch",
    workspace: Workspace | None = None,
) -> Tensor:
    """Return x @ weight.T [num_tokens, out_features], rounded to x's type.

    x: [num_tokens, in_features] in float32, bfloat16 or float16. Sums are in float32; products are
    in x's type with `triton`, in float32 with `torch`. Beyond 64 tokens, `quantized_matmul` is
    faster. A workspace saves allocations; capturing a graph needs one.

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
