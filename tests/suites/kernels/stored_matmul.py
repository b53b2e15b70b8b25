"""What every implementation of products with codes as checkpoints store them must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.stored_matmul` in one of its
own for Triton's interpreter.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.paged_attention.workspace import Workspace
from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.packing import pack_codes
from kernels.weight_only_matmul.weight import E2M1, PackedWeight, unpack
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import assert_near, random

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Form(NamedTuple):
    """Codes of one kind."""

    kind: str
    bits: int
    #: Columns that share a scale; 0: a whole row.
    group: int
    scale: str = "float32"
    has_zeros: bool = False
    has_offsets: bool = False


#: Groups that are several of a step, one, a part of it, and such that begin in the middle of one.
FORMS = {
    "int4": Form("int", 4, 128),
    "int4-rows": Form("int", 4, 0, "float16"),
    "int4-32": Form("int", 4, 32, "bfloat16"),
    "int4-32-zeros": Form("int", 4, 32, "float16", has_zeros=True),
    "int4-256-zeros": Form("int", 4, 256, has_zeros=True),
    "int4-48": Form("int", 4, 48, has_zeros=True),
    "uint4-32-offsets": Form("uint", 4, 32, has_offsets=True),
    "int3-rows-offsets": Form("int", 3, 0, has_offsets=True),
    "mxfp4": Form("e2m1", 4, 32, "power"),
    "nvfp4": Form("e2m1", 4, 16),
    "e2m1-rows": Form("e2m1", 4, 0, "power"),
    "table-64": Form("table", 4, 64),
    "table-rows": Form("table", 4, 0),
    "int8-rows": Form("int", 8, 0),
    "int8-rows-zeros": Form("int", 8, 0, has_zeros=True),
    "int8-32": Form("int", 8, 32, "float16"),
    "int6-16-offsets": Form("int", 6, 16, has_offsets=True),
    "fp8-rows": Form("e4m3", 8, 0),
    "fp8-128": Form("e4m3", 8, 128),
    "mxfp8": Form("e4m3", 8, 32, "power"),
    "e5m2-200": Form("e5m2", 8, 200),
}
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
#: Of x and of the weight, and tokens.
GROUPS = {(128, 128): 1, (128, None): 5, (None, 64): 17, (32, 96): 33, (256, 64): 2}
#: Tokens, output and input features.
SHAPES = ((1, 64, 256), (5, 70, 300), (17, 33, 130), (40, 65, 512), (3, 40, 1501))


def make(form: Form, rows: int, columns: int) -> tuple[PackedWeight, Tensor]:
    """A random weight, packed, and in float64 by the definition."""
    draw = torch.Generator("cpu").manual_seed(columns)
    group = form.group or columns
    shape = rows, -(-columns // group)
    codes, numbers, table = make_codes(form, (rows, columns), draw)
    scales = torch.rand(shape, generator=draw, device="cpu") + 0.5
    if form.scale == "power":
        scales = torch.exp2(torch.randint(-9, 3, shape, generator=draw, device="cpu").float())
    elif form.scale != "float32":
        scales = scales.to(getattr(torch, form.scale))
    half = 1 << (form.bits - 1)
    zeros = offsets = None
    if form.has_zeros:
        zeros = torch.randint(-half, half, shape, generator=draw, device="cpu").to(torch.int8)
    if form.has_offsets:
        offsets = torch.randn(shape, generator=draw, device="cpu")
    at = torch.arange(columns, device="cpu") // group
    exact = numbers.double()
    if zeros is not None:
        exact = exact - zeros.double()[:, at]
    exact = exact * scales.double()[:, at]
    if offsets is not None:
        exact = exact - offsets.double()[:, at]
    device = torch.get_default_device()
    packed = pack_codes(
        codes.to(device),
        scales.to(device),
        bits=form.bits,
        group=group,
        zeros=None if zeros is None else zeros.to(device),
        offsets=None if offsets is None else offsets.to(device),
        table=None if table is None else table.to(device),
    )
    return packed, exact.to(device)


def make_codes(
    form: Form, shape: tuple[int, int], draw: torch.Generator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All codes of a kind, the numbers that they stand for, and the table if there is one."""
    every = 1 << form.bits
    codes = torch.randint(0, every, shape, generator=draw, device="cpu")
    codes.view(-1)[:every] = torch.arange(every, device="cpu")
    if form.kind == "uint":
        return codes.to(torch.int8), codes, None
    if form.kind == "int":
        signed = (codes - every // 2).to(torch.int8)
        return signed, signed, None
    if form.kind == "table":
        table = torch.randn(16, generator=draw, device="cpu")
        return codes.to(torch.uint8), table[codes], table
    if form.kind == "e2m1":
        grid = torch.tensor([*E2M1, *(-number for number in E2M1)], device="cpu")
        return grid[codes].to(torch.float8_e4m3fn), grid[codes], None
    dtype = torch.float8_e4m3fn if form.kind == "e4m3" else torch.float8_e5m2
    floats = codes.to(torch.uint8).view(dtype)
    finite = torch.where(floats.float().isfinite(), floats.float(), 1.0).clamp(-448, 448)
    return finite.to(dtype), finite, None


def check_numbers(name: str) -> None:
    """What is packed are the numbers of the definition, each operation rounded to float32."""
    for columns in (64, 130, 300):
        packed, exact = make(FORMS[name], 9, columns)
        assert_near(unpack(packed).double(), exact, rtol=1e-6, atol=1e-5)


def check_product(
    name: str, shape: tuple[int, int, int], dtype: torch.dtype, implementation: str
) -> None:
    """The product with the numbers, which may be rounded to the type of the tokens."""
    num_tokens, out_features, in_features = shape
    packed, exact = make(FORMS[name], out_features, in_features)
    x = random(num_tokens, in_features + 3, dtype=dtype)[:, :in_features]
    with poisoned_empty():
        ours = weight_only_matmul(
            x, packed, implementation=implementation, workspace=Workspace(num_processors=8)
        )
    assert ours.dtype == dtype
    defined = x.double() @ exact.T
    unit = torch.finfo(dtype).eps / 2
    # A weight's rounding, of a size like that of the weight, and the result's.
    noise = x.double().square() @ exact.square().T
    allowed = unit * defined.abs() + 6 * unit * noise.sqrt() + 1e-5 * defined.abs().max()
    assert ((ours.double() - defined).abs() <= allowed).all()


def check_alone(name: str, implementation: str) -> None:
    """A token among others has the bits that it has alone."""
    packed, _ = make(FORMS[name], 40, 1100)
    x, workspace = random(17, 1100), Workspace(num_processors=8)
    multiply = partial(
        weight_only_matmul, weight=packed, implementation=implementation, workspace=workspace
    )
    together = multiply(x)
    for row in (0, 16):
        assert torch.equal(multiply(x[row : row + 1])[0], together[row])


def check_rounded_product(
    dtype: torch.dtype, groups: tuple[int | None, int | None], num_tokens: int, implementation: str
) -> None:
    """Codes of 8 bits on both sides, in groups that may differ, and end in the middle of a step."""
    out_features, in_features = 37, 330
    sides = []
    for rows, group, seed in ((num_tokens, groups[0], 0), (out_features, groups[1], 1)):
        codes = random(rows, in_features, seed=seed) * 40
        codes = codes.clamp(-127, 127).to(dtype)
        num_groups = 1 if group is None else -(-in_features // group)
        scales = random(rows, num_groups, seed=seed + 2).abs() + 0.5
        at = torch.arange(in_features) // (group or in_features)
        sides.append((codes, scales, codes.double() * scales.double()[:, at]))
    (x, x_scales, rows_), (weight, weight_scales, columns) = sides
    with poisoned_empty():
        ours = quantized_matmul(
            x,
            x_scales.flatten() if groups[0] is None else x_scales,
            weight,
            weight_scales.flatten() if groups[1] is None else weight_scales,
            x_group=groups[0],
            weight_group=groups[1],
            out_dtype=torch.float32,
            implementation=implementation,
        )
    assert_near(ours.double(), rows_ @ columns.T, rtol=1e-5, atol=1.0)


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    found: dict[str, Callable[[], None]] = {}
    for name, shape, (label, dtype) in zip(
        FORMS, cycle(SHAPES), cycle(DTYPES.items()), strict=False
    ):
        found[f"numbers-{name}"] = partial(check_numbers, name)
        found[f"product-{name}-odd"] = partial(
            check_product, name, (5, 70, 300), torch.float32, implementation
        )
        sizes = "x".join(map(str, shape))
        found[f"product-{name}-{sizes}-{label}"] = partial(
            check_product, name, shape, dtype, implementation
        )
    for (label, to), (groups, num_tokens) in product(CODES.items(), GROUPS.items()):
        found[f"rounded-{label}-{groups}"] = partial(
            check_rounded_product, to, groups, num_tokens, implementation
        )
    if implementation == "triton":
        for name in ("int4-32-zeros", "mxfp4", "fp8-128"):
            found[f"alone-{name}"] = partial(check_alone, name, implementation)
    return found


if __name__ == "__main__":
    report(checks("triton"))
