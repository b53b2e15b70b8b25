"""What every implementation of products in 8 bits and with packed weights must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.quantized_matmul` in one of
its own for Triton's interpreter.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch

from kernels.paged_attention.workspace import Workspace
from kernels.quantize_rows import quantize_rows
from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.packing import pack_8_bits, pack_int4
from kernels.weight_only_matmul.weight import PackedWeight, unpack
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random

if TYPE_CHECKING:
    from collections.abc import Callable

QUANTIZED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Tokens, output and input features: one tile and several, whole ones and others.
SHAPES = ((1, 64, 256), (5, 70, 300), (20, 130, 64), (33, 65, 512), (150, 200, 130))
#: Relative to the result's root mean square: products of normally distributed numbers.
PRODUCT_ERROR = {torch.int8: 0.03, torch.float8_e4m3fn: 0.08}
PACKERS: dict[str, Callable[[torch.Tensor], PackedWeight]] = {
    "int8": partial(pack_8_bits, dtype=torch.int8),
    "fp8": partial(pack_8_bits, dtype=torch.float8_e4m3fn),
    "int4": pack_int4,
    "int4-zeros": partial(pack_int4, symmetric=False),
}
#: The same for weights in that many bits and exact tokens.
WEIGHT_ERROR = {"int8": 0.02, "fp8": 0.06, "int4": 0.2, "int4-zeros": 0.2}


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the error over that of the result."""
    return float((ours.double() - exact).norm() / exact.norm())


def check_product(
    shape: tuple[int, int, int], to: torch.dtype, out_dtype: torch.dtype, implementation: str
) -> None:
    """The scaled product of the quantised numbers, and near the product of the others."""
    num_tokens, out_features, in_features = shape
    x, weight = random(num_tokens, in_features), random(out_features, in_features, seed=1)
    stored, x_scales = quantize_rows(x, to)
    # Rows that do not lie side by side.
    wide = torch.zeros((num_tokens, in_features + 16), dtype=to)
    wide.view(torch.uint8)[:, :in_features] = stored.view(torch.uint8)
    stored_weight, weight_scales = quantize_rows(weight, to)
    with poisoned_empty():
        ours = quantized_matmul(
            wide[:, :in_features],
            x_scales,
            stored_weight,
            weight_scales,
            out_dtype=out_dtype,
            implementation=implementation,
        )
    assert ours.dtype == out_dtype
    defined = (stored.double() * x_scales[:, None].double()) @ (
        stored_weight.double() * weight_scales[:, None].double()
    ).T
    # Half a unit in the last place of the result, and float32's sums.
    allowed = torch.finfo(out_dtype).eps / 2 * defined.abs() + 1e-5 * defined.abs().max()
    assert ((ours.double() - defined).abs() <= allowed).all()
    exact = x.double() @ weight.double().T
    assert relative_error(ours, exact) < PRODUCT_ERROR[to] + torch.finfo(out_dtype).eps


def check_exact_sums(implementation: str) -> None:
    """Sums of int8 that float32 has no room for."""
    x = torch.full((2, 4096), 127, dtype=torch.int8)
    weight = torch.full((16, 4096), 127, dtype=torch.int8)
    x[:, 0], weight[:, 0] = 1, 1
    ones = torch.ones(16)
    got = quantized_matmul(
        x, ones[:2], weight, ones, out_dtype=torch.float32, implementation=implementation
    )
    assert (got == float(4095 * 127 * 127 + 1)).all()


def check_weight_only(
    shape: tuple[int, int, int],
    packing: str,
    dtype: torch.dtype,
    num_processors: int,
    implementation: str,
) -> None:
    """The product with what the packed numbers stand for, and near that with the weight."""
    num_tokens, out_features, in_features = shape
    x = random(num_tokens, 2 * in_features, dtype=dtype)[:, :in_features]
    weight = random(out_features, in_features, seed=1)
    packed = PACKERS[packing](weight)
    workspace = Workspace(num_processors=num_processors)
    with poisoned_empty():
        ours = weight_only_matmul(x, packed, implementation=implementation, workspace=workspace)
        again = weight_only_matmul(x, packed, implementation=implementation, workspace=workspace)
    assert ours.dtype == dtype
    assert torch.equal(ours, again), "the counters were not put back"
    defined = x.double() @ unpack(packed).double().T
    allowed = torch.finfo(dtype).eps / 2 * defined.abs() + 1e-5 * defined.abs().max()
    assert ((ours.double() - defined).abs() <= allowed).all()
    exact = x.double() @ weight.double().T
    assert relative_error(ours, exact) < WEIGHT_ERROR[packing] + torch.finfo(dtype).eps


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    found: dict[str, Callable[[], None]] = {"exact-sums": partial(check_exact_sums, implementation)}
    for (name, to), shape in product(QUANTIZED.items(), SHAPES):
        found[f"product-{name}-{'x'.join(map(str, shape))}"] = partial(
            check_product, shape, to, torch.bfloat16, implementation
        )
    for name, to in QUANTIZED.items():
        found[f"product-{name}-fp32"] = partial(
            check_product, (5, 70, 300), to, torch.float32, implementation
        )
    for packing, shape in product(PACKERS, SHAPES):
        found[f"weight-{packing}-{'x'.join(map(str, shape))}"] = partial(
            check_weight_only, shape, packing, torch.bfloat16, 8, implementation
        )
    for packing, (name, dtype) in product(PACKERS, DTYPES.items()):
        # In several parts, the last of which is not a whole one.
        found[f"weight-{packing}-parts-{name}"] = partial(
            check_weight_only, (3, 40, 1500), packing, dtype, 8, implementation
        )
        found[f"weight-{packing}-one-part-{name}"] = partial(
            check_weight_only, (3, 40, 500), packing, dtype, 8, implementation
        )
    return found


if __name__ == "__main__":
    report(checks("triton"))
