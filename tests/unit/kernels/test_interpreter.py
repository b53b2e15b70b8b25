"""bfloat16 in Triton's interpreter, checked in a process of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.interpreter import install, narrow, widen
from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.interpreter import CHECKS

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str | None]:
    """What went wrong with each check."""
    return run_interpreted("tests.suites.kernels.interpreter")


@pytest.mark.parametrize("name", CHECKS)
def test_bfloat16_is_as_pytorch_has_it(name: str, interpreted: dict[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def test_numbers_are_rounded_to_the_nearest_ties_to_even() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, 1e-40, 0.0, -0.0])
    values = torch.cat((values, ties, torch.tensor([float("inf"), -float("inf")])))
    expected = values.bfloat16()
    bits = narrow(values.numpy())
    assert np.array_equal(bits, expected.view(torch.uint16).numpy())
    assert np.array_equal(widen(bits), expected.float().numpy())


def test_nan_stays_nan() -> None:
    payloads = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], dtype=np.uint32)
    assert np.isnan(widen(narrow(payloads.view(np.float32)))).all()


def test_a_process_that_compiles_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 must be set"):
        install()
