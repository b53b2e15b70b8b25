"""Quantised checkpoints for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.model.quantize.compressed_tensors import CompressedTensorsOutput
from shared.model.quantize.output import Choices
from shared.model.quantize.planning import make_plan
from shared.model.quantize.running import quantise
from shared.model.quantize.scheme import find_scheme

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.quantize.output import OutputFormat
    from shared.model.quantize.plan import Unit
    from shared.model.quantize.running import Calibration


def make(
    source: Path,
    out: Path,
    scheme: str = "w4a16",
    *,
    group: int | None = None,
    output: OutputFormat | None = None,
    calibration: Calibration | None = None,
    **choices: Any,
) -> list[Unit]:
    """Write a quantised checkpoint; return its files."""
    usual = find_scheme(scheme).with_group(group)
    chosen = Choices(usual=usual, **choices)
    plan = make_plan(source, chosen, output or CompressedTensorsOutput())
    kv_cache = chosen.kv_cache
    return list(quantise(plan, out, calibration=calibration, kv_cache=kv_cache))
