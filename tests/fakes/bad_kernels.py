"""Kernels that the compile gate must refuse: `python -m tests.fakes.bad_kernels`."""

from __future__ import annotations

import dataclasses
import sys

import triton
import triton.language as tl

from kernels.compile_gate.gate import GateCase, measure_all, show
from kernels.paged_attention.compile_cases import prefill_case


@triton.jit
def wrong_shapes(x):  # noqa: ANN001, ANN201 Triton's own types
    tile = tl.arange(0, 16)
    tl.store(x + tile, tl.load(x + tile) + tl.arange(0, 32))


_GOOD = prefill_case(4, 128, "bf16", arch=90)
_NARROW = prefill_case(4, 64, "bf16", arch=90)
BAD = (
    dataclasses.replace(_GOOD, name="too few warps", num_warps=4),
    dataclasses.replace(
        _NARROW,
        name="too many stages",
        constants={**_NARROW.constants, "KEYS": 128},
        num_stages=8,
    ),
    # Without knowing that addresses are multiples of 16 bytes, nothing can be loaded 16 at a time.
    dataclasses.replace(_GOOD, name="narrow loads", aligned=frozenset()),
    GateCase(
        name="wrong shapes",
        kernel=wrong_shapes,
        types={"x": "*fp32"},
        constants={},
        aligned=frozenset(),
        num_warps=1,
    ),
)

if __name__ == "__main__":
    found = measure_all([(case, 90) for case in BAD])
    well = [show(case, 90, each) for case, each in zip(BAD, found, strict=True)]
    sys.exit(0 if all(well) else 1)
