"""What every implementation of the products and sums of experts must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.expert_kernels` in one of
its own for Triton's interpreter. In half precision the error against float64 may be twice
PyTorch's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.grouped_matmul import RowGroups, group_rows, grouped_matmul
from kernels.weighted_sum import weighted_sum
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random
from tests.suites.kernels.layer_kernels import DTYPES, check_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Product(NamedTuple):
    """A product of grouped rows."""

    #: Rows of each group.
    counts: tuple[int, ...]
    out_features: int
    in_features: int
    #: Rows per row of x.
    repeats: int = 1
    has_bias: bool = False


#: One row of one group, groups of no rows at both ends and between, and of several tiles.
PRODUCTS = {
    "one-row": Product((0, 1, 0), 7, 5),
    "few-rows": Product((0, 3, 0, 0, 9, 1, 2, 0), 70, 130, repeats=3),
    "bias": Product((4, 0, 2), 64, 64, repeats=2, has_bias=True),
    "many-rows": Product((0, 150, 17, 1), 70, 66, repeats=2, has_bias=True),
    "no-rows": Product((0, 0), 8, 8),
}


def make(
    case: Product, dtype: torch.dtype
) -> tuple[Tensor, Tensor, RowGroups, Tensor | None, Tensor]:
    """Operands that do not lie side by side, and the group of each row, which are mixed."""
    num_rows, num_groups = sum(case.counts), len(case.counts)
    group_of = torch.repeat_interleave(torch.arange(num_groups), torch.tensor(case.counts))
    mixed = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0), device="cpu")
    group_of = group_of[mixed.to(group_of.device)]
    x = random(num_rows // case.repeats, case.in_features + 3, dtype=dtype)[:, : case.in_features]
    rows = 2 * case.out_features
    weight = random(num_groups, rows, case.in_features, dtype=dtype, seed=1)
    bias = random(num_groups, rows, dtype=dtype, seed=2) if case.has_bias else None
    own = slice(case.out_features, rows)
    return (
        x,
        weight[:, own],
        group_rows(group_of, num_groups),
        None if bias is None else bias[:, own],
        group_of,
    )


def check_product(case: Product, dtype: torch.dtype, implementation: str) -> None:
    """Each row times its group's weight."""
    x, weight, groups, bias, group_of = make(case, dtype)
    with poisoned_empty():
        ours = grouped_matmul(x, weight, groups, bias=bias, implementation=implementation)
    wide = x.double().repeat_interleave(case.repeats, dim=0)
    exact = torch.einsum("ri,roi->ro", wide, weight.double()[group_of])
    if bias is not None:
        exact += bias.double()[group_of]
    assert ours.shape == exact.shape
    if len(exact):
        check_near(ours, grouped_matmul(x, weight, groups, bias=bias), exact)


def check_alone(dtype: torch.dtype, implementation: str) -> None:
    """A row among others, of its own group and of others, has the bits that it has alone."""
    x, weight, _, _, group_of = make(Product((0, 9, 20, 3), 40, 70), dtype)
    together = grouped_matmul(x, weight, group_rows(group_of, 4), implementation=implementation)
    for row in (0, 5, 31):
        own = group_rows(group_of[row : row + 1], 4)
        alone = grouped_matmul(x[row : row + 1], weight, own, implementation=implementation)
        assert torch.equal(alone[0], together[row])


def check_sum(dtype: torch.dtype, implementation: str) -> None:
    for num_rows, size, has_weights in ((1, 7, False), (3, 1030, True), (8, 96, False)):
        rows = random(5 * num_rows, size, dtype=dtype)
        weights = random(5, num_rows, dtype=dtype, seed=1) if has_weights else None
        with poisoned_empty():
            ours = weighted_sum(rows, weights, num_rows, implementation=implementation)
        factors = torch.ones(5, num_rows) if weights is None else weights
        exact = (rows.double().unflatten(0, (5, -1)) * factors.double()[..., None]).sum(1)
        check_near(ours, weighted_sum(rows, weights, num_rows), exact)
    assert weighted_sum(rows[:0], None, 4, implementation=implementation).shape == (0, size)


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    found: dict[str, Callable[[], None]] = {}
    for name, dtype in DTYPES.items():
        for case, product in PRODUCTS.items():
            found[f"product-{name}-{case}"] = partial(check_product, product, dtype, implementation)
        found[f"sum-{name}"] = partial(check_sum, dtype, implementation)
    if implementation == "triton":
        found["alone"] = partial(check_alone, torch.float32, implementation)
    return found


if __name__ == "__main__":
    report(checks("triton"))
