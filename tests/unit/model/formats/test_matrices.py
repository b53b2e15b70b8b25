"""A stored matrix means what the format's own library, or its description, makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from shared.errors import ModelLoadError
from shared.model.linear.rounded import CodedProduct, RoundedProduct, has_codes
from shared.model.matrix.quantized import concatenate
from tests.fakes.stored.base import random_weight
from tests.fakes.stored.cases import ALL, WITH_INPUTS
from tests.fakes.stored.compressed import INT4, Compressed
from tests.fakes.stored.floats import Fp8
from tests.fakes.stored.reading import read

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


ROWS, COLUMNS = 40, 160


@pytest.mark.parametrize("case", ALL)
def test_a_matrix_is_what_the_library_reads(case: str, tmp_path: Path) -> None:
    written = ALL[case].write(random_weight(ROWS, COLUMNS))
    matrix = read(ALL[case].config, written.tensors, tmp_path, (ROWS, COLUMNS))
    assert torch.equal(matrix.dense(torch.float32), written.dense)
    assert torch.equal(matrix.dense(torch.bfloat16), written.dense.bfloat16())


@pytest.mark.parametrize("case", WITH_INPUTS)
def test_inputs_are_rounded_as_the_library_rounds_them(case: str, tmp_path: Path) -> None:
    writer = WITH_INPUTS[case]
    written = writer.write(random_weight(ROWS, COLUMNS))
    matrix = read(writer.config, written.tensors, tmp_path, (ROWS, COLUMNS))
    x = torch.cat([random_weight(9, COLUMNS, seed=3), torch.zeros(1, COLUMNS)])
    x[3] = x[3].abs()
    assert matrix.inputs is not None
    theirs = torch.cat([writer.round_inputs(row.view(1, 1, -1))[0] for row in x])
    assert torch.equal(matrix.inputs.apply(x), theirs)
    assert not torch.equal(theirs, x)


@pytest.mark.parametrize(
    "case",
    [
        "ct w8a8",
        "ct w8a8 static",
        "ct fp8 tokens",
        "fp8 static",
        "ct fp8 blocks",
        "fp8 blocks",
        "ct mxfp8 inputs",
        "quark mxfp8",
    ],
)
def test_codes_of_8_bits_are_multiplied_as_what_they_mean(case: str, tmp_path: Path) -> None:
    """With the kernels that Triton has, too."""
    writer = WITH_INPUTS[case]
    tensors = writer.write(random_weight(ROWS, COLUMNS)).tensors
    matrix = read(writer.config, tensors, tmp_path, (ROWS, COLUMNS))
    assert matrix.inputs is not None
    assert has_codes(matrix, matrix.inputs)
    x = random_weight(9, COLUMNS, seed=3)
    expected = RoundedProduct(matrix, matrix.inputs)(x)
    ours = CodedProduct(matrix, matrix.inputs, "torch")(x)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", ["ct w4a8", "ct w8a8 uneven", "ct nvfp4 inputs", "quark mxfp4"])
def test_other_codes_are_not(case: str, tmp_path: Path) -> None:
    writer = WITH_INPUTS[case]
    tensors = writer.write(random_weight(ROWS, COLUMNS)).tensors
    matrix = read(writer.config, tensors, tmp_path, (ROWS, COLUMNS))
    assert matrix.inputs is not None
    assert not has_codes(matrix, matrix.inputs)


@pytest.mark.parametrize("case", ALL)
def test_rows_of_a_matrix_are_those_of_the_dense_one(case: str, tmp_path: Path) -> None:
    """However scales are shared: families permute, cut and join rows."""
    written = ALL[case].write(random_weight(ROWS, COLUMNS))
    matrix = read(ALL[case].config, written.tensors, tmp_path, (ROWS, COLUMNS))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    assert torch.equal(matrix.take(order).dense(torch.float32), written.dense[order])
    halves = [half.dense(torch.float32) for half in matrix.split(2)]
    assert torch.equal(torch.cat(halves), written.dense)
    joined = concatenate([matrix.take(order), matrix])
    assert joined is not None
    expected = torch.cat([written.dense[order], written.dense])
    assert torch.equal(joined.dense(torch.float32), expected)


def test_matrices_that_differ_in_more_than_scales_are_not_joined(tmp_path: Path) -> None:
    weight = random_weight(ROWS, COLUMNS)
    one, other, third = (
        read(writer.config, writer.write(weight).tensors, tmp_path, (ROWS, COLUMNS))
        for writer in (ALL["ct int4 even"], ALL["ct int8 even"], ALL["ct w4a8"])
    )
    assert concatenate([one, other]) is None
    assert concatenate([one, third]) is None


def test_the_experts_of_gpt_oss_are_what_transformers_reads(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 6, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 130, (3, 6, 2), generator=generator, dtype=torch.uint8)
    tensors = {"_blocks": blocks, "_scales": scales}
    matrix = read({"quant_method": "mxfp4"}, tensors, tmp_path, (18, 64))
    theirs = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    ours = torch.stack([each.dense(torch.float32) for each in matrix.split(3)])
    assert torch.equal(ours, theirs.transpose(1, 2))


def test_a_line_may_be_one_word(tmp_path: Path) -> None:
    """As of a projection to few heads, whose zeros lie across its rows."""
    writer, rows = Compressed("pack-quantized", {**INT4, "symmetric": False}), 8
    written = writer.write(random_weight(ROWS, COLUMNS))
    tensors = {suffix: part[:rows].clone() for suffix, part in written.tensors.items()}
    tensors[".weight_zero_point"] = tensors[".weight_zero_point"][:1].clone()
    tensors[".weight_shape"] = torch.tensor([rows, COLUMNS])
    matrix = read(writer.config, tensors, tmp_path, (rows, COLUMNS))
    assert torch.equal(matrix.dense(torch.float32), written.dense[:rows])


@pytest.mark.parametrize("powers", [False, True])
def test_blocks_of_fp8_are_what_transformers_reads(powers: bool, tmp_path: Path) -> None:
    writer = Fp8(block=32)
    tensors = dict(writer.write(random_weight(64, COLUMNS)).tensors)
    config = {**writer.config, "scale_fmt": "ue8m0" if powers else "float"}
    if powers:
        exponents = tensors[".weight_scale_inv"].log2().ceil() + 127
        tensors[".weight_scale_inv"] = exponents.to(torch.uint8)
    matrix = read(config, tensors, tmp_path, (64, COLUMNS))
    theirs = Fp8Dequantize(None)._dequantize_one(
        tensors[".weight"], tensors[".weight_scale_inv"], torch.float32
    )
    assert torch.equal(matrix.dense(torch.float32), theirs)


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors[".weight_scale"]


def cut_scales(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_scale"] = tensors[".weight_scale"][:, :-1].contiguous()


def cut_codes(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_packed"] = tensors[".weight_packed"][:-1].contiguous()


def widen(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_packed"] = tensors[".weight_packed"].long()


def spoil(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_scale"][0, 0] = float("nan")


def misorder(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_g_idx"] = torch.full((COLUMNS,), 5, dtype=torch.int32)


def resize(tensors: dict[str, Tensor]) -> None:
    tensors[".weight_shape"] = torch.tensor([ROWS, COLUMNS + 1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, r"tensor 'm.weight_scale' is missing beside 'm.weight_"),
        (cut_scales, r"'m.weight_scale' has shape \[40, 4\], .* ask for \[40, 5\]"),
        (cut_codes, r"'m.weight_packed' has shape \[39, 20\], .* ask for \[40, 20\]"),
        (widen, r"'m.weight_packed' has dtype I64, its format has I32"),
        (spoil, r"'m.weight_scale' has a scale that is not finite"),
        (misorder, r"'m.weight_g_idx' has a group that is not from 0 to 4"),
        (resize, r"'m.weight_shape' is not \[40, 160\]"),
    ],
)
def test_damaged_tensors_are_refused_by_name(damage: Any, message: str, tmp_path: Path) -> None:
    writer = Compressed("pack-quantized", INT4)
    tensors = dict(writer.write(random_weight(ROWS, COLUMNS)).tensors)
    damage(tensors)
    with pytest.raises(ModelLoadError, match=message) as caught:
        read(writer.config, tensors, tmp_path, (ROWS, COLUMNS))
    assert str(tmp_path) in str(caught.value)


def test_groups_may_be_in_another_order(tmp_path: Path) -> None:
    """Older files of compressed-tensors name the group of each column."""
    writer = Compressed("pack-quantized", INT4)
    written = writer.write(random_weight(ROWS, COLUMNS))
    order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(0))
    groups = (torch.arange(COLUMNS) // 32)[order].int()
    tensors = {**written.tensors, ".weight_g_idx": groups}
    matrix = read(writer.config, tensors, tmp_path, (ROWS, COLUMNS))
    plain = read(writer.config, written.tensors, tmp_path, (ROWS, COLUMNS))
    codes = plain.codes.float()
    expected = codes * plain.scales.float()[:, groups.long()]
    assert torch.equal(matrix.dense(torch.float32), expected)
    assert replace(matrix, column_groups=None).dense(torch.float32).ne(expected).any()
