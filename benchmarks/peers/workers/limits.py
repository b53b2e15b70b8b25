"""What this machine can do at all: `python -m … --threads 2 --cores 0,1 --shapes JSON`.

Prints one JSON object. Each value is the best of several tries: a limit is what was reached, not
what is usual. Libraries only, nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Layer = tuple[int, int]

TRIES = 7
ENOUGH_S = 1.0
NUM_BYTES = 512 << 20
SQUARE = 2048


def main() -> None:
    """Measure everything that was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("--shapes", required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    limits = {
        "dram_read_gb_s": read_rate(),
        "memcpy_gb_s": copy_rate(options.threads),
        "gemm_gflop_s": gemm_rate(),
    }
    for model, shapes in json.loads(options.shapes).items():
        weights = [torch.randn(n, k).bfloat16() for n, k in shapes]
        for rows in (1, 16, 32, 1024):
            limits[f"linear_{model}_m{rows}_gflop_s"] = linear_rate(weights, rows)
    print(json.dumps(limits))


def read_rate() -> float:
    """GB/s of summing memory that fits into no cache."""
    data = torch.ones(NUM_BYTES // 4, dtype=torch.float32)
    return NUM_BYTES / shortest_s(lambda: data.sum()) / 1e9


def copy_rate(num_threads: int) -> float:
    """GB/s copied, all threads together."""
    source = np.ones(NUM_BYTES, np.uint8)
    target = np.zeros_like(source)
    halves = [np.array_split(array, num_threads) for array in (target, source)]
    pairs = list(zip(*halves, strict=True))

    def copy() -> None:
        threads = [threading.Thread(target=np.copyto, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return NUM_BYTES / shortest_s(copy) / 1e9


def gemm_rate() -> float:
    """GFLOP/s of a square bfloat16 product."""
    x, w = (torch.randn(SQUARE, SQUARE).bfloat16() for _ in range(2))
    return 2 * SQUARE**3 / shortest_s(lambda: linear(x, w)) / 1e9


def linear_rate(weights: Sequence[torch.Tensor], rows: int) -> float:
    """GFLOP/s of a model's products one after another, in the faster of the library's two ways.

    Every weight is a tensor of its own, so that all of them are read from memory as in a step.
    """
    inputs = {k: torch.randn(rows, k).bfloat16() for k in {w.shape[1] for w in weights}}
    flops = sum(2 * rows * w.numel() for w in weights)

    def plain() -> None:
        for w in weights:
            linear(inputs[w.shape[1]], w)

    ways: list[Callable[[], Any]] = [plain]
    # Others lack oneDNN's instructions for it.
    if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512":
        ways.append(_packed(weights, inputs, rows))
    return flops / min(shortest_s(way) for way in ways) / 1e9


def _packed(
    weights: Sequence[torch.Tensor], inputs: dict[int, torch.Tensor], rows: int
) -> Callable[[], None]:
    """With weights laid out for oneDNN beforehand, as Inductor's freezing does."""
    ops: Any = torch.ops.mkldnn
    packed = [(ops._reorder_linear_weight(w, rows), w.shape[1]) for w in weights]

    def run() -> None:
        for weight, k in packed:
            ops._linear_pointwise(inputs[k], weight, None, "none", [], "")

    return run


def shortest_s(function: Callable[[], Any]) -> float:
    """Of several tries, after one that is not counted; of two if they take long."""
    function()
    times_s: list[float] = []
    while len(times_s) < TRIES and (len(times_s) < 2 or sum(times_s) < ENOUGH_S):
        started_s = time.perf_counter()
        function()
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)


if __name__ == "__main__":
    main()
