"""Matrices of all formats, and models of some, on Triton's kernels in an interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shared.model.linear.fused import FusedLinear
from shared.model.linear.rounded import RoundedProduct
from shared.model.linear.stored import AsStored
from shared.model.matrix.inputs import InputRounding
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element, Rounding
from tests.fakes.kernels.interpreted import run_interpreted
from tests.fakes.stored.cases import ALL
from tests.suites.kernels.triton_stored import RUNS, STORED, name_of, write_all

pytest.importorskip("triton")

CHECKS = [*(f"product {case}" for case in ALL), *(name_of(*run) for run in RUNS)]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What went wrong with each check."""
    folder = tmp_path_factory.mktemp("stored")
    write_all(folder)
    return run_interpreted("tests.suites.kernels.triton_stored", **{STORED: str(folder)})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CHECKS)
def test_triton_computes_stored_matrices(name: str, interpreted: dict[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def test_inputs_that_a_dtype_does_not_hold_are_left_to_pytorch() -> None:
    """Of float16 they may be too large, and a scale of a group is no factor of the result."""
    rule = Rounding(element=Element.INT, bits=8)
    matrix = QuantizedMatrix(
        codes=torch.ones(8, 64, dtype=torch.int8),
        bits=4,
        scales=torch.ones(8, 2),
        group=32,
        inputs=InputRounding(rule),
    )
    by_group = replace(matrix, inputs=InputRounding(replace(rule, group=32)))
    method = AsStored(torch.device("cpu"), implementation="triton")

    def is_left(own: QuantizedMatrix, dtype: torch.dtype) -> bool:
        linear = FusedLinear(in_size=64, out_sizes=(8,), bias=False, dtype=dtype)
        return isinstance(method.keep(own, linear), RoundedProduct)

    assert not is_left(matrix, torch.bfloat16)
    assert is_left(matrix, torch.float16)
    assert is_left(by_group, torch.bfloat16)
    assert not is_left(by_group, torch.float32)
