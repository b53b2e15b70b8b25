"""`python -m benchmarks.gpu --part kernels|engine|handoff`: one table per part.

On a GPU every part stays within its budget of seconds; `--device cpu --small` runs the same code
with tiny shapes in a few seconds, and then the numbers mean nothing.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 typer reads it at run time
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.gpu.attention_part import measure_decode, measure_prefill
from benchmarks.gpu.bench import Bench, measure_ceilings
from benchmarks.gpu.engine_part import measure_engine
from benchmarks.gpu.handoff_part import measure_handoff
from benchmarks.gpu.layer_part import (
    measure_blocks,
    measure_experts,
    measure_layer_kernels,
    measure_products,
    measure_sampling,
)
from benchmarks.gpu.narrow_part import measure_narrow_engine, measure_narrow_products
from benchmarks.gpu.peers_part import measure_peers
from benchmarks.gpu.rows import Report


class Part(StrEnum):
    """What fits into one run."""

    KERNELS = "kernels"
    ENGINE = "engine"
    HANDOFF = "handoff"


PARTS = {
    Part.KERNELS: (
        measure_decode, measure_prefill, measure_blocks, measure_layer_kernels, measure_products,
        measure_narrow_products, measure_experts, measure_sampling,
    ),
    Part.ENGINE: (measure_engine, measure_narrow_engine, measure_peers),
    Part.HANDOFF: (measure_handoff,),
}  # fmt: skip


def main(
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.KERNELS,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the code.")] = "cuda",
    small: Annotated[bool, typer.Option(help="Tiny shapes.")] = False,
    budget_s: Annotated[
        float, typer.Option(help="Rows after this many seconds are left out.")
    ] = 480,
    out: Annotated[Path | None, typer.Option(help="Write the rows here as JSON.")] = None,
) -> None:
    """Measure one part and print its table."""
    report = run(part, device=device, small=small, budget_s=budget_s)
    if out is not None:
        report.save(out)


def run(part: Part, *, device: str, small: bool, budget_s: float) -> Report:
    """Measure one part; the report has been printed."""
    report = Report(Console(width=160), budget_s)
    torch.manual_seed(0)
    bench = Bench(torch.device(device), report, small)
    name = torch.cuda.get_device_name() if bench.is_cuda else device
    report.note("", "device", f"{name}, torch {torch.__version__}")
    measure_ceilings(bench)
    for measure in PARTS[part]:
        try:
            measure(bench)
        except Exception as error:  # noqa: BLE001 what was measured so far must be seen
            report.note("", measure.__name__, f"failed: {type(error).__name__}: {error}"[:300])
    report.show(f"{part} on {name}")
    return report


if __name__ == "__main__":
    typer.run(main)
