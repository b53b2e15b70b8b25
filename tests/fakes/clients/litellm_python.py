"""Where LiteLLM is: in an environment of its own, since it pins older versions of what we need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def litellm_python() -> str:
    """`LITELLM_PYTHON`, or the interpreter that `make setup` made; skips the test without one."""
    if given := os.environ.get("LITELLM_PYTHON"):
        return given
    folder = Path(sys.prefix) / "litellm"
    if not any(folder.glob("lib/*/site-packages/litellm")):
        pytest.skip("LiteLLM is not installed: `make setup`, or set LITELLM_PYTHON")
    return str(folder / "bin" / "python")
