"""Products with packed weights: ours, PyTorch's and oneDNN's own packing, on one stack of layers.

`python -m benchmarks.native_linear [--threads 2]` prints GB/s of weights and GFLOP/s, medians of
alternating runs. The weights are larger than the caches, as a model's are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn.functional import linear

from kernels.native.library import Kind
from kernels.native.linear import PackedLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Product = Callable[[Tensor], Tensor]

COLUMNS, INNER, LAYERS = 9728, 896, 24
ROWS = (1, 4, 8, 16, 32, 64, 512)
REPEATS = 7


def stacks(weights: list[Tensor], threads: int) -> Mapping[str, list[Product]]:
    """The same layers, each kept the way its library wants it."""
    mkldnn = torch.ops.mkldnn

    def packed_by_onednn(weight: Tensor) -> Product:
        packed = mkldnn._reorder_linear_weight(weight)
        return lambda x: mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    def ours(kind: Kind) -> list[Product]:
        return [PackedLinear(weight, kind=kind, num_threads=threads) for weight in weights]

    return {
        "PyTorch": [lambda x, w=weight: linear(x, w) for weight in weights],  # type: ignore[misc]
        "oneDNN, packed": [packed_by_onednn(weight) for weight in weights],
        "ours": ours(Kind.BFLOAT16),
        "ours, int8": ours(Kind.INT8),
    }


def measure(layers: list[Product], x: Tensor) -> float:
    """Seconds for all layers."""
    start = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    weights = [torch.randn(COLUMNS, INNER).bfloat16() for _ in range(LAYERS)]
    systems = stacks(weights, threads)
    seconds: dict[tuple[str, int], list[float]] = {}
    with torch.inference_mode():
        for rows in track(ROWS, description="rows"):
            inputs = {True: torch.randn(rows, INNER), False: torch.randn(rows, INNER).bfloat16()}
            for repeat in range(REPEATS + 1):
                for name, layers in systems.items():
                    taken = measure(layers, inputs[name.startswith("ours")])
                    if repeat:  # the first one warms up
                        seconds.setdefault((name, rows), []).append(taken)
    table = Table("rows", *(f"{name}: GB/s, GFLOP/s" for name in systems))
    for rows in ROWS:
        cells = []
        for name in systems:
            median = statistics.median(seconds[name, rows])
            numbers = COLUMNS * INNER * LAYERS
            size = numbers * (1 if "int8" in name else 2)
            cells.append(f"{size / median / 1e9:.1f}, {2 * rows * numbers / median / 1e9:.0f}")
        table.add_row(str(rows), *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
