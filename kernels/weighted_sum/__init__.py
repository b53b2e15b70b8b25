"""Weighted sums of neighbouring rows: what a token's experts return, added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.weighted_sum import reference

if TYPE_CHECKING:
    from torch import Tensor


def weighted_sum(
    rows: Tensor, weights: Tensor | None, num_rows: int, *, implementation: str = "torch"
) -> Tensor:
    """Return [num_tokens, size], the sums of each `num_rows` rows, added in their order in float32.

    rows: [num_tokens * num_rows, size], contiguous; weights: [num_tokens, num_rows] in the rows'
    type, factors of the rows, contiguous; None: all 1.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    num_tokens = len(rows) // num_rows
    if len(rows) % num_rows or (weights is not None and weights.shape != (num_tokens, num_rows)):
        of = None if weights is None else tuple(weights.shape)
        raise ValueError(f"{len(rows)} rows, {num_rows} in each sum, do not fit weights {of}")
    if implementation == "torch":
        return reference.weighted_sum(rows, weights, num_rows)
    if implementation == "triton":
        from kernels.weighted_sum.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(rows, weights, num_rows)
    raise ValueError(f"weighted_sum has no implementation {implementation!r}")
