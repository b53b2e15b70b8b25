"""bfloat16 and float8: `python -m tests.suites.kernels.interpreter` in Triton's interpreter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.interpreter import install
from tests.fakes.kernels.interpreted import report
from tests.fakes.kernels.tensors import assert_near, random

SIZE = 64
#: Of sums in bfloat16.
FEW_BITS = {"rtol": 1.6e-2, "atol": 1e-5}


@triton.jit
def elementwise(a, b, sums, products, smaller, chosen, sizes, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    index = tl.arange(0, SIZE)
    x, y = tl.load(a + index), tl.load(b + index)
    tl.store(sums + index, x + y - 0.5)
    tl.store(products + index, x * y)
    tl.store(smaller + index, (x < y) & (x > -1.0))
    tl.store(chosen + index, tl.where(x < y, x, -y))
    tl.store(sizes + index, tl.abs(-x))


@triton.jit
def reductions(a, largest, place, total, running, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    index = tl.arange(0, SIZE)
    x = tl.load(a + index)
    tl.store(largest, tl.max(x, 0))
    tl.store(place, tl.argmax(x, 0))
    tl.store(total, tl.sum(x, 0))
    tl.store(running + index, tl.cumsum(x, 0))


@triton.jit
def product(a, b, out, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    index = tl.arange(0, SIZE)
    square = index[:, None] * SIZE + index[None, :]
    tl.store(out + square, tl.dot(tl.load(a + square), tl.load(b + square)).to(tl.bfloat16))


@triton.jit
def casts(a, wide, half, integers, back, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    index = tl.arange(0, SIZE)
    x = tl.load(a + index)
    tl.store(wide + index, x.to(tl.float32))
    tl.store(half + index, x.to(tl.float16))
    tl.store(integers + index, (x * 8).to(tl.int32))
    tl.store(back + index, (x.to(tl.float32) / 3).to(tl.bfloat16))


@triton.jit
def copy(source, target, SIZE: tl.constexpr):  # noqa: ANN001, ANN201, N803
    index = tl.arange(0, SIZE)
    tl.store(target + index, tl.load(source + index).to(target.dtype.element_ty))


def bf16(*shape: int, seed: int = 0) -> torch.Tensor:
    return random(*shape, dtype=torch.bfloat16, seed=seed)


def check_elementwise() -> None:
    a, b = bf16(SIZE), bf16(SIZE, seed=1)
    sums, products, chosen, sizes = (torch.empty_like(a) for _ in range(4))
    smaller = torch.empty(SIZE, dtype=torch.bool)
    elementwise[(1,)](a, b, sums, products, smaller, chosen, sizes, SIZE)
    assert torch.equal(sums, a + b - 0.5)
    assert torch.equal(products, a * b)
    assert torch.equal(smaller, (a < b) & (a > -1.0))
    assert torch.equal(chosen, torch.where(a < b, a, -b))
    assert torch.equal(sizes, a.abs())


def check_reductions() -> None:
    a = bf16(SIZE)
    largest, total, running = bf16(1), bf16(1), torch.empty_like(a)
    place = torch.empty(1, dtype=torch.int32)
    reductions[(1,)](a, largest, place, total, running, SIZE)
    assert largest.item() == a.max().item()
    assert place.item() == a.argmax().item()
    assert_near(total[0], a.float().sum().bfloat16(), **FEW_BITS)
    assert_near(running, a.float().cumsum(0).bfloat16(), **FEW_BITS)


def check_product() -> None:
    a, b = bf16(SIZE, SIZE), bf16(SIZE, SIZE, seed=1)
    out = torch.empty_like(a)
    product[(1,)](a, b, out, SIZE)
    assert_near(out, (a.double() @ b.double()).bfloat16(), **FEW_BITS)


def check_casts() -> None:
    a = bf16(SIZE)
    wide, half = a.float() * 0, a.half() * 0
    integers, back = torch.zeros(SIZE, dtype=torch.int32), a * 0
    casts[(1,)](a, wide, half, integers, back, SIZE)
    assert torch.equal(wide, a.float())
    assert torch.equal(half, a.half())
    assert torch.equal(integers, (a * 8).int())
    assert torch.equal(back, (a.float() / 3).bfloat16())


def check_float8() -> None:
    values = random(4096) * 50
    rounded = torch.zeros(4096, dtype=torch.float8_e4m3fn)
    copy[(1,)](values, rounded, 4096)
    assert torch.equal(rounded.view(torch.uint8), values.to(rounded.dtype).view(torch.uint8))
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.cat((codes, codes[:1]))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        wide = torch.full((128,), 7.0, dtype=dtype)
        copy[(1,)](codes, wide, 128)
        assert torch.equal(wide, codes.to(dtype))


def check_installing_twice() -> None:
    install()
    install()
    check_elementwise()


CHECKS = {
    "elementwise": check_elementwise,
    "reductions": check_reductions,
    "product": check_product,
    "casts": check_casts,
    "float8": check_float8,
    "installing-twice": check_installing_twice,
}

if __name__ == "__main__":
    report(CHECKS)
