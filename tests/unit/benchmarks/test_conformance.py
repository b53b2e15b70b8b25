"""Answers are judged by what their schemas say."""

from __future__ import annotations

import pytest

from benchmarks.structured.conformance import find_fault
from benchmarks.structured.schemas import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_checked(name: str) -> None:
    """What has no checker, since a package is missing, passes."""
    assert "x y" in str(find_fault('"x y"', {"type": "string", "format": name}))
