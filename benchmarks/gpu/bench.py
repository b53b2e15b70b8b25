"""The device that is measured, and how: events on a GPU, one call on a CPU."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.rows import Report, Row

#: Overwritten before every sample: several times the second-level cache of an H200 (60 MB).
_FLUSH_BYTES = 256 << 20
#: Calls in one captured graph, so that launching it costs little per call.
_GRAPH_CALLS = 20


@dataclass(slots=True)
class Bench:
    """Where to measure. `small` shapes run everything on a CPU in seconds and mean nothing."""

    device: torch.device
    report: Report
    small: bool
    _flush: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        num_bytes = _FLUSH_BYTES if self.is_cuda else 1
        self._flush = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    @property
    def is_cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    @property
    def implementation(self) -> str:
        """Which of the kernels' implementations is measured."""
        return "triton" if self.is_cuda else "torch"

    def pick(self, full: Any, small: Any) -> Any:
        """The shape for this run."""
        return small if self.small else full

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Normal numbers: the power that a product draws depends on its data."""
        return torch.randn(*shape, dtype=dtype, device=self.device)

    def tidy(self) -> None:
        """Give back what the objects before held: the next engine counts free memory."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def once(self, call: Callable[[], object]) -> float:
        """Seconds of one call, the device's work included."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def seconds(self, call: Callable[[], object]) -> float:
        """Median seconds of a call on the device, with cold caches."""
        call()
        estimate = self.once(call)
        if not self.is_cuda:
            return estimate
        num = int(min(50, max(7, 0.15 / max(estimate, 1e-5))))
        samples = []
        for _ in range(num):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            call()
            end.record()
            samples.append((start, end))
        self.synchronize()
        times_ms: list[float] = [start.elapsed_time(end) for start, end in samples]
        return median(times_ms) * 1e-3

    def graph_seconds(self, call: Callable[[], object]) -> float:
        """Seconds of a call among many in one CUDA graph: what a recorded step pays for it."""
        if not self.is_cuda:
            return self.seconds(call)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_GRAPH_CALLS):
                call()
        return self.seconds(graph.replay) / _GRAPH_CALLS


def measure_ceilings(bench: Bench) -> None:
    """What this device does at best, now: every share of this run is of these."""
    copy, product = _measure_copy(bench), _measure_product(bench)
    if copy.seconds and product.seconds:
        bench.report.copy_rate = copy.num_bytes / copy.seconds
        bench.report.gemm_rate = product.num_flops / product.seconds


def _measure_copy(bench: Bench) -> Row:
    """The memory's rate, of copying and of reading alone."""
    num_bytes = bench.pick(2 << 30, 1 << 16)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=bench.device).random_(0, 255)
    target, numbers = torch.empty_like(source), source.view(torch.int64)
    bench.report.measure(
        "ceiling", "read only (sum)", lambda: bench.seconds(numbers.sum), num_bytes=num_bytes
    )
    return bench.report.measure(
        "ceiling",
        "device copy",
        lambda: bench.seconds(lambda: target.copy_(source)),
        num_bytes=2 * num_bytes,
    )


def _measure_product(bench: Bench) -> Row:
    size = bench.pick(8192, 64)
    left, right = bench.random(size, size), bench.random(size, size)
    return bench.report.measure(
        "ceiling",
        f"bf16 product {size}³",
        lambda: bench.seconds(lambda: left @ right),
        num_flops=2 * size**3,
    )


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the whole tensor, in float64. NaN where anything was left unwritten."""
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm())
