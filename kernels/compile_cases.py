"""Collects what the compile gate compiles: `cases()` of every `kernels/*/compile_cases.py`.

There each package with a Triton kernel lists how its launcher launches it for common models.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.compile_gate.gate import GateCase


def all_cases() -> list[GateCase]:
    """Return every case of every package, in the order of the packages' names."""
    found: list[GateCase] = []
    for path in sorted(Path(__file__).parent.glob("*/compile_cases.py")):
        module = importlib.import_module(f".{path.parent.name}.compile_cases", __package__)
        found.extend(module.cases())
    return found
