"""HQQ: rows of its matrices, models that answer as the dense ones, and what is refused.

That every number is its library's is in `test_oracles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.registry import find_format
from shared.model.linear.stored import AsStored
from shared.model.loader import load_model
from shared.model.matrix.quantized import concatenate
from shared.model.matrix.uniting import unite
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.answers import check_answers
from tests.fakes.stored.base import quantise_checkpoint, random_weight
from tests.fakes.stored.hqq import Hqq
from tests.fakes.stored.models import FAMILIES, wants_of
from tests.fakes.stored.reading import read
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

ROWS, COLUMNS = 40, 160
#: Across rows: those of a matrix, and numbers of half of its rows, are cut.
MATRICES = {
    **{str(bits): Hqq(bits) for bits in (1, 2, 3, 4, 5, 6, 8)},
    "3 across rows": Hqq(3, axis=0),
    "4 across rows": Hqq(4, 64, axis=0),
    "8 across rows": Hqq(8, 10, axis=0),
}
MODELS = {"4": Hqq(), "3 across rows": Hqq(3, 8, axis=0)}
NAME = "model.layers.1.mlp.up_proj"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", MATRICES)
def test_rows_of_a_matrix_are_those_of_the_dense_one(case: str, tmp_path: Path) -> None:
    written = MATRICES[case].write(random_weight(ROWS, COLUMNS))
    matrix = read(MATRICES[case].config, written.tensors, tmp_path, (ROWS, COLUMNS))
    assert torch.equal(matrix.dense(torch.float32), written.dense)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    assert torch.equal(matrix.take(order).dense(torch.float32), written.dense[order])
    joined = concatenate([matrix.take(order), matrix])
    assert joined is not None
    expected = torch.cat([written.dense[order], written.dense])
    assert torch.equal(joined.dense(torch.float32), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_is_computed_in_its_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """As its library does, which rounds the difference, too."""
    tensors = Hqq().write(random_weight(ROWS, COLUMNS)).tensors
    matrix = read(Hqq().config, tensors, tmp_path, (ROWS, COLUMNS))
    scales, zeros = (tensors[name].to(dtype).view(ROWS, -1, 1) for name in (".scale", ".zero"))
    codes = matrix.codes.to(dtype).view(ROWS, -1, 32)
    expected = ((codes - zeros) * scales).view(ROWS, COLUMNS)
    assert torch.equal(matrix.dense(dtype), expected)
    assert not torch.equal(matrix.dense(torch.float32).to(dtype), expected)


def test_it_becomes_dense_everywhere(tmp_path: Path) -> None:
    tensors = Hqq().write(random_weight(ROWS, COLUMNS)).tensors
    matrix = read(Hqq().config, tensors, tmp_path, (ROWS, COLUMNS))
    assert not AsStored(torch.device("cpu"), implementation="triton").keeps(matrix)
    assert unite([matrix, matrix]) is None


def write(writer: Hqq, folder: Path) -> tuple[Path, Path]:
    model_type, sizes = FAMILIES["qwen2"]
    plain = save(random_model(model_type, seed=3, **sizes), folder / "plain")
    dense = quantise_checkpoint(plain, folder / "stored", writer, wants_of(plain))
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    return folder / "stored", plain


@pytest.mark.parametrize("case", MODELS)
def test_answers_equal_those_of_the_dense_model(case: str, tmp_path: Path) -> None:
    stored, dense = write(MODELS[case], tmp_path)
    for impl in ("native", "torch", "transformers"):
        check_answers(stored, dense, model_impl=impl)


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{NAME}.zero"]


def drop_shape(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{NAME}.shape"]


def widen_shape(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.shape"] = torch.tensor([64, 64, 1])


def cut(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.W_q"] = tensors[f"{NAME}.W_q"][:-1].clone()


def spoil(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.zero"][0] = float("nan")


def turn(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.axis"] = torch.tensor(0, dtype=torch.int32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, r"tensor '.*up_proj.zero' is missing beside"),
        (drop_shape, r"tensor '.*up_proj.shape' is missing beside"),
        (widen_shape, r"up_proj.shape' has shape \[3\], .* ask for \[2\]"),
        (cut, r"up_proj.W_q' has shape .* ask for "),
        (spoil, r"up_proj.zero' has a zero that is not finite"),
        (turn, r"up_proj.axis' is not 1 but 0"),
    ],
)
@pytest.mark.parametrize("impl", ["torch", "transformers"])
def test_damaged_files_are_refused_by_name(
    damage: Callable[[dict[str, Tensor]], None], message: str, impl: str, tmp_path: Path
) -> None:
    stored, _ = write(Hqq(), tmp_path)
    edit_tensors(stored / "model.safetensors", damage)
    with pytest.raises(ModelLoadError, match=message):
        load_model(stored, model_impl=impl)


def test_groups_that_cut_the_rows_are_refused_by_name(tmp_path: Path) -> None:
    tensors = Hqq(group=32).write(random_weight(ROWS, 48)).tensors
    with pytest.raises(ModelLoadError, match="has 48 columns, which are no whole groups of 32"):
        read(Hqq(group=32).config, tensors, tmp_path, (ROWS, 48))
    across = Hqq(group=32, axis=0)
    with pytest.raises(ModelLoadError, match="has 33 rows of 3 numbers, which are no whole groups"):
        read(across.config, across.write(random_weight(32, 3)).tensors, tmp_path, (33, 3))


def changed(what: str, value: Any) -> dict[str, Any]:
    config = Hqq().config
    own = config["quant_config"]
    (own if what in own else own["weight_quant_params"])[what] = value
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("nbits", 7), r"weight_quant_params.nbits must be one of 1, 2, 3, 4, 5, 6, 8"),
        (changed("nbits", 1.58), r"weight_quant_params.nbits must be an integer, not 1.58"),
        (changed("group_size", 0), r"weight_quant_params.group_size must be at least 1"),
        (changed("axis", 2), r"weight_quant_params.axis must be 0 or 1, not 2"),
        (changed("view_as_float", True), r"view_as_float is set: codes in the dtype"),
        (changed("zero_quant_params", {"nbits": 8}), r"zero_quant_params is set: scales and"),
        (changed("rank", 4), r"weight_quant_params.rank is unknown"),
        ({"quant_method": "hqq"}, r"quantization_config.quant_config is missing"),
        ({"quant_method": "hqq", "nbits": 4}, r"quantization_config.nbits is unknown"),
        ({"quant_method": "hqq", "quant_config": {"mlp.up_proj": {}}}, r"mlp.up_proj.weight_"),
    ],
)
def test_other_settings_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        find_format({"quantization_config": config})


def test_a_module_that_the_config_leaves_out_is_refused_by_name(tmp_path: Path) -> None:
    own = Hqq().config["quant_config"]
    config = {**Hqq().config, "quant_config": {"mlp.up_proj": own}}
    tensors = Hqq().write(random_weight(ROWS, COLUMNS)).tensors
    with pytest.raises(ModelLoadError, match=r"m: quantization_config\.quant_config leaves it out"):
        read(config, tensors, tmp_path, (ROWS, COLUMNS))
