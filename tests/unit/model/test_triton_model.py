"""The model on Triton's kernels, in an interpreter of its own."""

from __future__ import annotations

import pytest

from tests.fakes.kernels.interpreted import run_interpreted
from tests.suites.kernels.triton_model import CHECKS

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str | None]:
    """What went wrong with each check."""
    return run_interpreted("tests.suites.kernels.triton_model")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CHECKS)
def test_the_model_on_triton(name: str, interpreted: dict[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]
