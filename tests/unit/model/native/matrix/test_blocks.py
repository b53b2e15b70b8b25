"""Rows of a file's bytes in the native library: the bits of the matrices that they mean."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from kernels.native.kinds import BlockType, Kind
from shared.errors import ModelLoadError
from shared.gguf.codes import FORMS, read_codes
from shared.gguf.types import TYPES
from shared.model.checkpoint.files.tensor_files import TensorHeader
from shared.model.checkpoint.formats import awq
from shared.model.checkpoint.matrices.layout import Array, Layout, Packing, StoredMatrix
from shared.model.checkpoint.matrices.unpacking import read_matrix, read_words
from shared.model.linear.fused import FusedLinear
from shared.model.matrix.blocks import BlockMatrix, BlockRows, quantized
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element
from shared.model.matrix.uniting import join
from shared.model.native.packing.matrices import PackedWeight
from shared.model.native.packing.packing import Packing as NativePacking
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.unit.model.native.matrix.test_fours import multiply

INNER = 768
KINDS = {kind.name: kind for kind in TYPES.values()}
#: Rows of each of two tensors; both together fill no whole panel.
ROWS = 38


def read(name: str, rows: BlockRows) -> QuantizedMatrix:
    found = read_codes(rows.all().numpy(), KINDS[name])
    if not np.isfinite(found.scales).all():
        raise ModelLoadError(f"{name} has a scale that is not finite")
    group = FORMS[name].group
    element = torch.float8_e4m3fn if FORMS[name].is_float else torch.int8
    offsets = None if found.offsets is None else torch.from_numpy(found.offsets)
    codes, table = torch.from_numpy(found.codes), FORMS[name].table
    return QuantizedMatrix(
        codes=(codes if table is not None else codes.view(element)).view(-1, INNER),
        bits=FORMS[name].bits,
        scales=torch.from_numpy(found.scales).view(-1, INNER // group),
        offsets=None if offsets is None else offsets.view(-1, INNER // group),
        group=group,
        table=None if table is None else torch.tensor(table).float(),
    )


def blocks(name: str, seed: int) -> BlockMatrix:
    """Rows of any bytes whose numbers are finite, and not large."""
    kind, draw = KINDS[name], np.random.default_rng(seed)
    # Of eight blocks, one or more are usable, whatever the kind.
    raw = draw.integers(0, 256, (8 * ROWS * INNER // kind.block_values, kind.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        most = np.abs(gguf.dequantize(raw, Type(kind.number))).max(axis=1)
    raw = raw[most < 1e3][: ROWS * INNER // kind.block_values]
    return of_bytes(name, raw.reshape(ROWS, -1))


def moderate(seed: int) -> BlockMatrix:
    """MXFP4 whose scales are float16 numbers; those of any bytes are not."""
    own = blocks("MXFP4", seed)
    (rows,) = own.parts
    exponents = rows.data.view(-1, KINDS["MXFP4"].block_bytes)[:, 0]
    exponents.copy_(105 + exponents % 30)
    return own


def of_bytes(name: str, raw: np.ndarray[Any, Any]) -> BlockMatrix:
    rows = BlockRows(torch.from_numpy(raw), partial(read, name))
    form = FORMS[name]
    return BlockMatrix(
        parts=(rows,),
        kind=name,
        columns=INNER,
        unit=KINDS[name].block_values,
        bits=form.bits,
        group=form.group,
        has_table=form.is_float or form.table is not None,
    )


def words(*, turned: bool, zeros: bool) -> BlockMatrix:
    """Rows as GPTQ stores them, or as compressed-tensors does."""
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(-(2**31), 2**31, (ROWS, INNER // 8), generator=draw).int()
    scales = torch.rand(ROWS, INNER // 64, generator=draw).half()
    stored = {".codes": codes, ".scales": scales}
    if zeros:
        # 12 groups of 4 bits are two words.
        stored[".zeros"] = torch.randint(-(2**31), 2**31, (ROWS, 2), generator=draw).int()
    each = {name: (tensor.T.contiguous() if turned else tensor) for name, tensor in stored.items()}
    packing = Packing(bits=4)
    layout = Layout(
        element=Element.INT,
        bits=4,
        codes=Array(suffix=".codes", dtypes=("I32",), is_turned=turned, packing=packing),
        scales=Array(suffix=".scales", dtypes=("F16",), is_turned=turned),
        zeros=Array(suffix=".zeros", dtypes=("I32",), is_turned=turned, packing=packing)
        if zeros
        else None,
        is_offset=True,
        group=64,
    )
    headers = {
        name: TensorHeader(None, tuple(each[name].shape), "F16" if name == ".scales" else "I32")  # type: ignore[arg-type]
        for name in each
    }
    matrix = StoredMatrix("m", layout, headers)
    found = read_words(matrix, each, ROWS, INNER)
    assert found is not None
    assert torch.equal(
        found.dense(torch.float32), read_matrix(matrix, each, ROWS, INNER).dense(torch.float32)
    )
    return found


def words_of_columns(seed: int) -> BlockMatrix:
    """Rows as AWQ stores them: words have numbers of eight rows, in its order."""
    draw, rows = torch.Generator().manual_seed(seed), 40
    shapes = {".qweight": (INNER, rows // 8), ".qzeros": (INNER // 64, rows // 8)}
    stored = {
        name: torch.randint(-(2**31), 2**31, shape, generator=draw).int()
        for name, shape in shapes.items()
    }
    stored[".scales"] = torch.rand(INNER // 64, rows, generator=draw).half()
    headers = {
        name: TensorHeader(None, tuple(own.shape), "F16" if name == ".scales" else "I32")  # type: ignore[arg-type]
        for name, own in stored.items()
    }
    matrix = StoredMatrix("m", awq.layout_of(64), headers)
    found = read_words(matrix, stored, rows, INNER)
    assert found is not None
    expected = read_matrix(matrix, stored, rows, INNER).dense(torch.float32)
    assert torch.equal(found.dense(torch.float32), expected)
    return found.take(range(ROWS))


MATRICES = {
    **{
        name: (partial(blocks, name, 1), partial(blocks, name, 2)) for name in BlockType.__members__
    },
    "MXFP4 of float16": (partial(moderate, 1), partial(moderate, 2)),
    "words of columns": (partial(words_of_columns, 1), partial(words_of_columns, 2)),
    "words": (partial(words, turned=False, zeros=False), partial(words, turned=True, zeros=True)),
}


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_products_have_the_bits_of_the_matrix_that_rows_mean(name: str, *, paired: bool) -> None:
    """Of two tensors, the second in another order, with inputs rounded where groups allow it."""
    one, other = (make() for make in MATRICES[name])
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    matrix = join([one, other.take(order)], alike=True)
    assert isinstance(matrix, BlockMatrix)
    rows = torch.randn(5, INNER, generator=torch.Generator().manual_seed(0))
    columns = 96 if paired else 2 * ROWS  # pairs fill whole panels
    for rounds_inputs in (False, True):
        packing = NativePacking(
            LibraryThreads(ThreadPlan(2)), Kind.BFLOAT16, rounds_inputs=rounds_inputs
        )
        linear = FusedLinear(
            in_size=INNER, out_sizes=(ROWS, ROWS), bias=True, dtype=torch.float32, is_gated=paired
        )
        assert linear.bias is not None
        linear.bias.copy_(torch.arange(2 * ROWS))
        assert packing.keeps(matrix)
        own, expected = packing.keep(matrix, linear), packing.keep(quantized(matrix), linear)
        assert isinstance(own, PackedWeight)
        assert isinstance(expected, PackedWeight)
        found = multiply(packing, own.matrix, rows, columns)
        assert torch.equal(found, multiply(packing, expected.matrix, rows, columns))
        assert found.abs().max() > 1


@pytest.mark.parametrize("name", BlockType.__members__)
def test_a_scale_that_is_not_finite_is_refused_when_rows_are_packed(name: str) -> None:
    matrix = blocks(name, 1)
    raw = matrix.parts[0].data.clone()
    raw[ROWS - 1] = 0xFF
    packing = NativePacking(LibraryThreads(ThreadPlan(2)), Kind.BFLOAT16)
    linear = FusedLinear(in_size=INNER, out_sizes=(ROWS,), bias=False, dtype=torch.float32)
    spoilt = replace(matrix, parts=(replace(matrix.parts[0], data=raw),))
    with pytest.raises(ModelLoadError, match="not finite"):
        packing.keep(spoilt, linear)
