"""Each case of `helm/ci` is rendered once."""

from __future__ import annotations

import pytest

from tests.unit.helm.chart import CASES, Rendered, case_flags, render


@pytest.fixture(scope="session")
def cases() -> dict[str, Rendered]:
    """The newest Kubernetes' rendering of every case."""
    return {case: render(*case_flags(case)) for case in CASES}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, cases: dict[str, Rendered]) -> Rendered:
    """One of them."""
    return cases[request.param]
