"""Quantised matrices are those of compressed-tensors, and GPTQ's are better for their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from safetensors.torch import save_file

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.tensor_files import TensorHeader, read_headers
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import READERS
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checkpoint.matrices.unpacking import read_matrix
from shared.model.quantize.compressed_tensors import CompressedTensorsOutput
from shared.model.quantize.gptq import Hessian, quantise_for
from shared.model.quantize.nearest import by_number, encode, find_scales, round_to_nearest
from shared.model.quantize.output import Choices
from shared.model.quantize.packing import pack_matrix
from shared.model.quantize.quark import QuarkOutput
from shared.model.quantize.scheme import SCHEMES
from tests.fakes.stored.base import random_weight
from tests.fakes.stored.compressed import Compressed

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.checkpoint.matrices.layout import Layout
    from shared.model.matrix.quantized import QuantizedMatrix
    from shared.model.quantize.output import OutputFormat
    from shared.model.quantize.scheme import Scheme

#: By scheme: the preset of compressed-tensors with the same numbers.
PRESETS = {
    "w4a16": "W4A16",
    "w8a8": "W8A8",
    "fp8": "FP8_DYNAMIC",
    "fp8-block": "FP8_BLOCK",
    "mxfp4": "MXFP4",
    "mxfp6": "MXFP6A8",
    "mxfp8": "MXFP8",
    "mxfp4a16": "MXFP4A16",
    "mxfp6a16": "MXFP6A16",
    "mxfp8a16": "MXFP8A16",
}
#: The last block of rows is not full.
ROWS, COLUMNS = 136, 384


def layout_of(output: OutputFormat, scheme: Scheme) -> Layout:
    headers = dict.fromkeys(output.suffixes(scheme), TensorHeader(Path(), (), ""))
    found = READERS[output.name](output.config(Choices(usual=scheme))).layout(
        Module(("m",)), headers
    )
    assert found is not None
    return found


def read_back(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> QuantizedMatrix:
    path = folder / "model.safetensors"
    save_file({f"m{suffix}": part for suffix, part in tensors.items()}, path)
    headers = {name.removeprefix("m"): header for name, header in read_headers(path).items()}
    layout = READERS[config["quant_method"]](config).layout(Module(("m",)), headers)
    assert layout is not None
    return read_matrix(StoredMatrix("m", layout, headers), tensors, ROWS, COLUMNS)


def library(name: str) -> Compressed:
    own = CompressedTensorsOutput().config(Choices(usual=SCHEMES[name]))
    (group,) = own["config_groups"].values()
    return Compressed(group["format"], group["weights"], group["input_activations"])


@pytest.mark.parametrize("name", SCHEMES)
def test_the_config_says_what_a_preset_of_the_library_says(name: str) -> None:
    own = CompressedTensorsOutput().config(Choices(usual=SCHEMES[name]))
    (group,) = QuantizationConfig.model_validate(own).config_groups.values()
    assert isinstance(group, QuantizationScheme)
    preset = preset_name_to_scheme(PRESETS[name], ["Linear"])
    for ours, theirs in (
        (group.weights, preset.weights),
        (group.input_activations, preset.input_activations),
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.model_copy(update={"observer": theirs.observer}) == theirs


@pytest.mark.parametrize("name", SCHEMES)
def test_tensors_are_those_that_the_library_writes(name: str) -> None:
    weight, scheme = random_weight(ROWS, COLUMNS).bfloat16(), SCHEMES[name]
    matrix = round_to_nearest(weight, scheme)
    stored = pack_matrix(matrix, layout_of(CompressedTensorsOutput(), scheme))
    expected = library(name).write(weight.float())
    assert stored.keys() == expected.tensors.keys()
    for suffix, theirs in expected.tensors.items():
        assert stored[suffix].dtype == theirs.dtype or suffix == ".weight_shape"
        assert torch.equal(as_bytes(stored[suffix]), as_bytes(theirs.reshape(stored[suffix].shape)))
    assert torch.equal(matrix.dense(torch.float32), expected.dense)


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.int64 else tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("output", [CompressedTensorsOutput(), QuarkOutput()], ids=str)
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "fp8-block"])
def test_what_is_packed_is_unpacked(name: str, output: OutputFormat, tmp_path: Path) -> None:
    """By Baton's reader, whose numbers are those of the libraries."""
    matrix = round_to_nearest(random_weight(ROWS, COLUMNS), SCHEMES[name])
    tensors = pack_matrix(matrix, layout_of(output, SCHEMES[name]))
    read = read_back(output.config(Choices(usual=SCHEMES[name])), tensors, tmp_path)
    assert torch.equal(read.dense(torch.float32), matrix.dense(torch.float32))
    assert (read.inputs is None) == (SCHEMES[name].inputs is None)


@pytest.mark.parametrize("name", SCHEMES)
def test_rows_of_zeros_stay_zeros(name: str) -> None:
    weight = random_weight(ROWS, COLUMNS)
    weight[:, :128] = 0
    weight[3] = 0
    dense = round_to_nearest(weight.half(), SCHEMES[name]).dense(torch.float32)
    assert dense[:, :128].eq(0).all()
    assert dense[3].eq(0).all()


def test_numbers_that_are_not_finite_are_refused() -> None:
    weight = random_weight(ROWS, COLUMNS)
    weight[5, 7] = torch.inf
    with pytest.raises(ModelLoadError, match="not finite"):
        round_to_nearest(weight, SCHEMES["w4a16"])


def correlated(num: int, columns: int) -> Tensor:
    """Inputs in which columns have much in common, and differ in size."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(num, columns // 8, generator=generator)
    mixed = hidden @ torch.randn(columns // 8, columns, generator=generator)
    noise = torch.randn(num, columns, generator=generator)
    return (mixed + 0.3 * noise) * torch.linspace(0.1, 2.0, columns)


def hessian_of(inputs: Tensor) -> Hessian:
    found = Hessian(inputs.shape[1])
    for rows in inputs.split(37):
        found.add(rows)
    return found


@pytest.mark.parametrize("name", SCHEMES)
def test_gptq_has_a_lower_error_of_outputs(name: str) -> None:
    """On inputs that it has not seen."""
    inputs, scheme = correlated(600, COLUMNS), SCHEMES[name]
    weight = random_weight(ROWS, COLUMNS)
    hessian = hessian_of(inputs[:400])
    errors = [
        (inputs[400:] @ (matrix.dense(torch.float32) - weight).T).square().mean()
        for matrix in (quantise_for(weight, scheme, hessian), round_to_nearest(weight, scheme))
    ]
    assert errors[0] < 0.6 * errors[1]


def plain_gptq(weight: Tensor, inputs: Tensor, scheme: Scheme) -> Tensor:
    """The definition: after each column, the best change of all columns that are left.

    They are those of Optimal Brain Surgeon, with an inverse for each set of columns.
    """
    rows, columns = weight.shape
    hessian = inputs.double().T @ inputs.double()
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(columns)
    scales = by_number(find_scales(weight, scheme), scheme, range(rows), columns)
    left, order = weight.double().clone(), hessian.diagonal().argsort(descending=True)
    codes = torch.zeros(rows, columns)
    for place, column in enumerate(order):
        codes[:, column] = encode(left[:, column].float(), scales[:, column], scheme)
        error = left[:, column] - codes[:, column].double() * scales[:, column]
        rest = order[place:]
        inverse = hessian[rest][:, rest].inverse()
        left[:, rest] -= error[:, None] * inverse[0] / inverse[0, 0]
    return codes


@pytest.mark.parametrize("name", ["w4a16", "w8a8", "mxfp4a16"])
def test_gptq_is_a_plain_loop_over_columns(name: str) -> None:
    """Over several blocks of columns."""
    scheme = SCHEMES[name]
    if scheme.has_free_group:
        scheme = scheme.with_group(32)
    weight, inputs = random_weight(9, 160), correlated(500, 160)
    codes = quantise_for(weight, scheme, hessian_of(inputs)).codes.float()
    expected = plain_gptq(weight, inputs, scheme)
    # A number that is almost in the middle may be rounded either way.
    assert (codes != expected).float().mean() < 0.01
    assert not torch.equal(round_to_nearest(weight, scheme).codes.float(), expected)


def test_without_inputs_gptq_rounds_to_nearest() -> None:
    """As of an expert that no token of the calibration chose."""
    weight, scheme = random_weight(ROWS, COLUMNS), SCHEMES["w4a16"]
    ours = quantise_for(weight, scheme, Hessian(COLUMNS))
    assert torch.equal(ours.codes, round_to_nearest(weight, scheme).codes)


def test_inputs_that_are_not_finite_are_refused() -> None:
    inputs = correlated(20, COLUMNS)
    inputs[3, 4] = torch.nan
    with pytest.raises(ModelLoadError, match="not finite in calibration"):
        quantise_for(random_weight(ROWS, COLUMNS), SCHEMES["w8a8"], hessian_of(inputs))
