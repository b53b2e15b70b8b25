"""Codes of 4 bits times rows of 8 bits: exact sums by piece, and what chooses them."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn.functional import pad

from kernels.native.build import FLAGS, SOURCES, find_compiler
from kernels.native.kinds import Kind
from shared.errors import ConfigError
from shared.model.checks import check_model
from shared.model.linear.fused import FusedLinear
from shared.model.loader import load_model
from shared.model.matrix.nearest import round_to_codes
from shared.model.native.packing.fours import PackingFours
from shared.model.native.packing.matrices import PackedWeight
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.compressed import INT4, Compressed
from tests.unit.model.native.matrix.test_fours import (
    COLUMNS,
    INNER,
    NUM_ROWS,
    make_matrix,
    multiply,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix
    from shared.model.native.model import NativeCausalLM

PIECE = 32
MATRICES = {
    "symmetric": make_matrix(group=32, dtype=torch.float16),
    "zeros": make_matrix(group=64, dtype=torch.bfloat16, zeros="each"),
    "one-zero": make_matrix(group=128, dtype=torch.float32, signed=False, zeros="one"),
    "whole-rows": make_matrix(group=INNER, dtype=torch.float16, bits=3),
    "offsets": make_matrix(group=32, dtype=torch.float16, signed=False, has_offsets=True),
}


def rounded(rows: Tensor) -> Tensor:
    """Rows in 8 bits by pieces, as float64."""
    inner = rows.shape[1]
    pieces = pad(rows, (0, -inner % PIECE)).unflatten(1, (-1, PIECE))
    scales = pieces.abs().amax(-1, keepdim=True).clamp(min=1e-20) / 127
    codes = (pieces * (1 / scales)).round()
    return (codes.double() * scales.double()).flatten(1)[:, :inner]


def make_linear(columns: int = COLUMNS) -> FusedLinear:
    linear = FusedLinear(in_size=INNER, out_sizes=(columns,), bias=True, dtype=torch.float32)
    assert linear.bias is not None
    linear.bias.copy_(torch.arange(columns) / 7)
    return linear


def make_packing(num_threads: int = 1) -> Packing:
    return Packing(LibraryThreads(ThreadPlan(num_threads)), Kind.FLOAT32, rounds_inputs=True)


def drawn(count: int) -> Tensor:
    rows = torch.randn(max(NUM_ROWS), INNER, generator=torch.Generator().manual_seed(3))
    rows[0, PIECE : 2 * PIECE] = 0.0  # a piece without a scale
    return rows[:count]


def product(matrix: QuantizedMatrix, rows: Tensor) -> Tensor:
    """What rows in 8 bits give, each sum rounded once."""
    bias = make_linear().bias
    assert bias is not None
    return (rounded(rows) @ matrix.dense(torch.float32).double().T + bias).float()


@pytest.mark.parametrize("name", MATRICES)
def test_a_product_is_that_of_rounded_rows_whatever_is_beside_them(name: str) -> None:
    matrix = MATRICES[name]
    whole: Tensor | None = None
    for num_threads in (1, 2):
        packing = make_packing(num_threads)
        kept = packing.keep(matrix, make_linear())
        assert isinstance(kept, PackedWeight)
        for count in reversed(NUM_ROWS):
            rows = drawn(count).contiguous()
            own = multiply(packing, kept.matrix, rows)
            whole = own if whole is None else whole
            assert torch.equal(own, whole[:count])
            torch.testing.assert_close(own, product(matrix, rows), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["symmetric", "offsets"])
def test_panels_that_a_task_takes_together_have_their_own_columns(name: str) -> None:
    one, rows = MATRICES[name], drawn(max(NUM_ROWS)).contiguous()
    offsets = None if one.offsets is None else one.offsets.repeat(4, 1)
    codes, scales = one.codes.repeat(4, 1), one.scales.repeat(4, 1)
    four = replace(one, codes=codes, scales=scales, offsets=offsets)
    linear = FusedLinear(in_size=INNER, out_sizes=(4 * COLUMNS,), bias=False, dtype=torch.float32)
    packing = make_packing()
    together = multiply(packing, packing.keep(four, linear).matrix, rows, 4 * COLUMNS)
    few = multiply(packing, packing.keep(four, linear).matrix, rows[:100], 4 * COLUMNS)
    assert torch.equal(together, together[:, :COLUMNS].repeat(1, 4))
    assert torch.equal(together[:100], few)


def test_extreme_codes_and_rows_do_not_overflow() -> None:
    """All numbers of a piece at their largest, with one sign."""
    matrix = make_matrix(group=32, dtype=torch.float16, signed=False)
    matrix.codes.fill_(15)
    packing = make_packing()
    kept = packing.keep(matrix, make_linear())
    assert isinstance(kept, PackedWeight)
    for number in (-3.0, 3.0):
        rows = torch.full((4, INNER), number)
        own = multiply(packing, kept.matrix, rows)
        torch.testing.assert_close(own, product(matrix, rows), rtol=2e-6, atol=2e-6)


def test_groups_of_parts_of_a_piece_take_rows_as_they_are() -> None:
    matrix, rows = make_matrix(group=8, dtype=torch.float16), drawn(5).contiguous()
    packings = make_packing(), Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32)
    results = []
    for packing in packings:
        kept = packing.keep(matrix, make_linear())
        assert isinstance(kept, PackedWeight)
        results.append(multiply(packing, kept.matrix, rows))
    assert torch.equal(*results)


#: A product by itself, for processors without the instructions of this one.
PLAIN = """
#include "products/linear.h"
using namespace baton;
extern "C" void multiply_codes(const Codes* codes, const float* bias, const float* rows, int count,
                               float* out) {
  Pool pool(1, nullptr, 0);
  const Matrix* matrix = pack_codes(pool, *codes, bias, false);
  multiply_floats(pool, *matrix, rows, count, out);
  delete matrix;
}
"""


class Plain:
    """Computes a product where the library makes a matrix."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.rows = drawn(5).contiguous()
        self.out = torch.empty(5, COLUMNS)

    def baton_matrix_of_codes(self, _: int, codes: object, bias: int, paired: bool) -> int:
        assert not paired
        rows, out = (ctypes.c_void_p(part.data_ptr()) for part in (self.rows, self.out))
        self._library.multiply_codes(codes, ctypes.c_void_p(bias), rows, len(self.rows), out)
        return 1

    def baton_matrix_delete(self, matrix: int) -> None:
        """It is gone."""


def test_a_processor_without_vectors_of_bytes_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text(PLAIN)
    names = (
        "threads/cores",
        "threads/pool",
        "matrix/matrix",
        "products/linear",
        "products/multiply",
    )
    # As one unit: a compiler's time goes to the headers of each.
    sources = [word for name in names for word in ("-include", f"{name}.cpp")]
    flags = [flag for flag in FLAGS if not flag.startswith(("-march", "-O"))]
    target = tmp_path / "plain.so"
    command = [find_compiler(), *flags, "-O0", f"-I{SOURCES}", *sources, tmp_path / "plain.cpp"]
    subprocess.run([*command, "-o", target], check=True)
    for matrix in MATRICES.values():
        packing = make_packing()
        packing._library = plain = Plain(target)  # type: ignore[assignment]
        packing.keep(matrix, make_linear())
        torch.testing.assert_close(plain.out, product(matrix, plain.rows), rtol=4e-6, atol=4e-6)


def test_rounding_reaches_the_largest_number_of_a_group() -> None:
    weight = torch.randn(5, 72, generator=torch.Generator().manual_seed(0)) * 0.02
    weight[2, 32:64] = 0.0
    matrix = round_to_codes(weight.bfloat16())
    assert matrix.scales.dtype == torch.float16
    assert matrix.shape == (5, 72)
    assert (matrix.codes.split(32, dim=1)[0].amin(dim=1) == -8).all()
    assert (matrix.codes[2, 32:64] == 0).all()
    step = matrix.scales.float().abs().repeat_interleave(32, dim=1)[:, :72]
    # All but numbers of the other sign that are nearly as large are half a step away at most.
    errors = (matrix.dense(torch.float32) - weight).abs() / step
    assert errors.max() < 1.01
    assert (errors < 0.52).float().mean() > 0.97


def test_scales_that_float16_has_not_stay_float32() -> None:
    for factor in (1e-8, 1e8):
        weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * factor
        matrix = round_to_codes(weight)
        assert matrix.scales.dtype == torch.float32
        error = (matrix.dense(torch.float32) - weight).square().mean().sqrt()
        assert error < 0.15 * factor


def native(folder: Path, **options: str) -> NativeCausalLM:
    loaded = load_model(folder, attention_backend="native", **options)
    model: NativeCausalLM = loaded.model  # type: ignore[assignment]
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dense checkpoint, and one that stores codes of 4 bits."""
    dense, stored = (tmp_path_factory.mktemp(name) for name in ("dense", "stored"))
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    save(random_model("qwen2", seed=4, **sizes), dense)
    quantise_checkpoint(
        dense, stored, Compressed("pack-quantized", INT4), lambda name: "_proj.weight" in name
    )
    return dense, stored


def scores(model: NativeCausalLM) -> Tensor:
    prompt = random_prompt(50, vocab_size=321, seed=1)
    return PagedDriver(model, block_size=8, chunk=13).score(prompt)


def near(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=-1).mean())


def test_the_setting_says_what_codes_are_multiplied_with(folders: tuple[Path, Path]) -> None:
    _, stored = folders
    for dtype, auto in (("float32", "float"), ("bfloat16", "int8")):
        found = {
            name: scores(native(stored, dtype=dtype, cpu_int4_compute=name))
            for name in ("auto", "float", "int8")
        }
        assert torch.equal(found["auto"], found[auto])
        assert not torch.equal(found["float"], found["int8"])
        assert near(found["float"], found["int8"]) > 0.995
    with pytest.raises(ConfigError, match="cpu int4 compute 'int4' is unknown; known: auto, float"):
        check_model(stored, cpu_int4_compute="int4")


@pytest.mark.parametrize("compute", ["float", "int8"])
def test_dense_weights_may_be_narrowed_to_4_bits(compute: str, folders: tuple[Path, Path]) -> None:
    dense, stored = folders
    options = {"dtype": "float32", "quantization": "int4", "cpu_int4_compute": compute}
    narrow = native(dense, **options)
    assert isinstance(narrow._packing, PackingFours)
    own = scores(narrow)
    assert near(own, scores(native(dense, dtype="float32"))) > 0.8
    # Codes that a checkpoint stores are not rounded again.
    kept = scores(native(stored, dtype="float32", cpu_int4_compute=compute))
    assert near(scores(native(stored, **options)), kept) > 0.9999


def test_weights_that_differ_have_other_fingerprints(folders: tuple[Path, Path]) -> None:
    dense, stored = folders
    of_dense = [
        load_model(dense, dtype="bfloat16", **options).fingerprint
        for options in (
            {},
            {"quantization": "int8"},
            {"quantization": "int4"},
            # The head, which is the embedding, stays dense.
            {"quantization": "int4", "cpu_int4_compute": "float"},
            {"quantization": "int4", "attention_backend": "torch"},
        )
    ]
    assert len(set(of_dense)) == len(of_dense)
    of_stored = {
        load_model(stored, dtype="bfloat16", cpu_int4_compute=name).fingerprint
        for name in ("float", "int8")
    }
    assert len(of_stored) == 1
