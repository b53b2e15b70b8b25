"""Products and sums of experts: PyTorch here, Triton in an interpreter of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.grouped_matmul import group_rows, grouped_matmul
from kernels.weighted_sum import weighted_sum
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.expert_kernels import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.expert_kernels")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_computes_the_definition(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", checks("triton"))
def test_triton_computes_the_definition(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def test_rows_are_ordered_by_group() -> None:
    groups = group_rows(torch.tensor([2, 0, 2, 4, 0]), 6)
    assert groups.order.tolist() == [1, 4, 0, 2, 3]
    assert groups.ends.tolist() == [2, 2, 4, 4, 5, 5]


def test_what_does_not_fit_is_refused() -> None:
    x, weight, groups = torch.ones(2, 4), torch.ones(3, 5, 4), group_rows(torch.tensor([0, 2]), 3)
    with pytest.raises(ValueError, match="does not fit weight"):
        grouped_matmul(x[:, :3], weight, groups)
    with pytest.raises(ValueError, match="does not fit weight"):
        grouped_matmul(x.half(), weight, groups)
    with pytest.raises(ValueError, match="2 rows in 3 groups do not fit"):
        grouped_matmul(x, weight[:2], groups)
    with pytest.raises(ValueError, match="2 rows in 3 groups do not fit"):
        grouped_matmul(torch.ones(3, 4), weight, groups)
    with pytest.raises(ValueError, match="bias"):
        grouped_matmul(x, weight, groups, bias=torch.ones(3, 4))
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        grouped_matmul(x, weight, groups, implementation="cuda")
    with pytest.raises(ValueError, match="5 rows, 2 in each sum"):
        weighted_sum(torch.ones(5, 4), None, 2)
    with pytest.raises(ValueError, match="do not fit weights"):
        weighted_sum(torch.ones(4, 4), torch.ones(4, 1), 2)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        weighted_sum(x, None, 2, implementation="cuda")
