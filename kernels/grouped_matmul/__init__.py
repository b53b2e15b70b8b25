"""Products of rows with the weight of their group: those of experts, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.grouped_matmul import reference
from kernels.grouped_matmul.groups import RowGroups, group_rows

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RowGroups", "group_rows", "grouped_matmul"]


def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    groups: RowGroups,
    *,
    bias: Tensor | None = None,
    implementation: str = "torch",
) -> Tensor:
    """Return [num_rows, out_features]: row r is x[r // repeats] @ weight[g].T, for r in group g.

    x: [num_rows / repeats, in_features]: each of its rows stands for as many neighbours in `groups`
    as there are more of those; weight: [num_groups, out_features, in_features] in x's type; bias:
    [num_groups, out_features] in x's type, added before the result is rounded. Sums are in float32.
    The last dimension of each must be contiguous. With `triton`, the launch depends on shapes
    alone, and features are added in the same steps for any number of rows.

    Raises:
        ValueError: shapes or types that do not fit together, or an unknown implementation.
    """
    _check(x, weight, groups, bias)
    if implementation == "torch":
        return reference.grouped_matmul(x, weight, groups, bias)
    if implementation == "triton":
        from kernels.grouped_matmul.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(x, weight, groups, bias)
    raise ValueError(f"grouped_matmul has no implementation {implementation!r}")


def _check(x: Tensor, weight: Tensor, groups: RowGroups, bias: Tensor | None) -> None:
    if x.ndim != 2 or weight.ndim != 3 or x.shape[1] != weight.shape[2] or x.dtype != weight.dtype:
        raise ValueError(
            f"x {tuple(x.shape)} of {x.dtype} does not fit weight {tuple(weight.shape)} of "
            f"{weight.dtype}"
        )
    if len(groups.ends) != len(weight) or len(groups.order) % max(1, len(x)):
        raise ValueError(
            f"{len(groups.order)} rows in {len(groups.ends)} groups do not fit "
            f"x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        )
    if bias is not None and (bias.shape != weight.shape[:2] or bias.dtype != x.dtype):
        raise ValueError(
            f"bias {tuple(bias.shape)} of {bias.dtype} does not fit weight {tuple(weight.shape)}"
        )
