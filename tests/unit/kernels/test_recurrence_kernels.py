"""Recurrences: PyTorch here, Triton in an interpreter of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernels.recurrence.conv import causal_conv
from kernels.recurrence.delta import gated_delta
from kernels.recurrence.mamba import mamba_scan
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.recurrence_kernels import DELTA, MAMBA, checks, make_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKS = checks("torch")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def interpreted() -> Mapping[str, str | None]:
    """What the interpreter said of each check."""
    pytest.importorskip("triton")
    return run_interpreted("tests.suites.kernels.recurrence_kernels")


@pytest.mark.parametrize("name", CHECKS)
def test_torch_computes_the_definition(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", CHECKS)
def test_triton_computes_the_definition(name: str, interpreted: Mapping[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def test_what_does_not_fit_is_refused() -> None:
    batch = make_batch((2,), places=[(-1, 1)])
    few = batch._replace(states=batch.states[:, :100])
    rows, weight, numbers = torch.ones(2, 60), torch.ones(60, 1, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match="do not fit weight"):
        causal_conv(rows[:, :5], weight, None, batch, activate=False)
    with pytest.raises(ValueError, match="states of 100 numbers do not hold 3 rows of 60"):
        causal_conv(rows, weight, None, few, activate=False)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        causal_conv(rows, weight, None, batch, activate=False, implementation="cuda")
    rows = torch.ones(2, 2 * DELTA.key_size + DELTA.value_size)
    with pytest.raises(ValueError, match="rows"):
        gated_delta(rows[:, 1:], numbers, numbers, DELTA, batch)
    with pytest.raises(ValueError, match="states of 100 numbers"):
        gated_delta(rows, numbers, numbers, DELTA, few)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        gated_delta(rows, numbers, numbers, DELTA, batch, implementation="cuda")
    rows = torch.ones(2, MAMBA.inner_size + 2 * MAMBA.group_size)
    with pytest.raises(ValueError, match="rows"):
        mamba_scan(rows[:, 1:], numbers, numbers, torch.ones(4), MAMBA, batch)
    with pytest.raises(ValueError, match="states of 100 numbers"):
        mamba_scan(rows, numbers, numbers, torch.ones(4), MAMBA, few)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        mamba_scan(rows, numbers, numbers, torch.ones(4), MAMBA, batch, implementation="cuda")
