"""Kernels that the compile gate must refuse: `python -m tests.fakes.kernels.bad_kernels`."""

from __future__ import annotations

import dataclasses

import triton
import triton.language as tl

from kernels.compile_gate.gate import WARPGROUP_PRODUCT, WIDE_LOAD, GateCase, measure_all, show
from shared.ending import end_process


@triton.jit
def wrong_shapes(x):  # noqa: ANN001, ANN201 Triton's own types
    tile = tl.arange(0, 16)
    tl.store(x + tile, tl.load(x + tile) + tl.arange(0, 32))


@triton.jit
def tile_at_once(x, out):  # noqa: ANN001, ANN201
    places = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]
    tile = tl.load(x + places)
    tl.store(out + places, tile / tl.sum(tile, 0)[None, :])


@triton.jit
def product(a, b, out, num):  # noqa: ANN001, ANN201
    rows, inner = tl.arange(0, 128), tl.arange(0, 64)
    total = tl.zeros((128, 128), tl.float32)
    for start in range(0, num, 64):
        left = tl.load(a + rows[:, None] * 4096 + start + inner[None, :])
        right = tl.load(b + (start + inner[:, None]) * 4096 + rows[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * 128 + rows[None, :], total)


_PRODUCT = GateCase(
    name="product",
    kernel=product,
    types={"a": "*bf16", "b": "*bf16", "out": "*fp32", "num": "i32"},
    constants={},
    aligned=frozenset({"a", "b", "out", "num"}),
    num_warps=8,
    num_stages=3,
    instructions={90: (WIDE_LOAD, WARPGROUP_PRODUCT)},
)
_TILE = GateCase(
    name="tile at once",
    kernel=tile_at_once,
    types={"x": "*fp32", "out": "*fp32"},
    constants={},
    aligned=frozenset({"x", "out"}),
    num_warps=8,
)
#: Well, and near the bad ones.
GOOD = (_PRODUCT, _TILE)
BAD = (
    dataclasses.replace(_TILE, name="too few warps", num_warps=1),
    dataclasses.replace(_PRODUCT, name="too many stages", num_stages=8),
    # Without knowing that addresses are multiples of 16 bytes, nothing can be loaded 16 at a time.
    dataclasses.replace(_PRODUCT, name="narrow loads", aligned=frozenset()),
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
    cases = (*GOOD, *BAD)
    found = measure_all([(case, 90) for case in cases])
    well = [show(case, 90, each) for case, each in zip(cases, found, strict=True)]
    end_process(0 if all(well) else 1)
