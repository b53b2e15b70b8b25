"""bitsandbytes: matrices as the library reads them, and models that answer as the dense ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ModelLoadError
from shared.model.checkpoint.formats.base import Module
from shared.model.checkpoint.formats.registry import find_format
from shared.model.checkpoint.headers.parts import Parts, all_headers
from shared.model.checkpoint.loading.reading import open_matrix
from shared.model.checkpoint.matrices.layout import StoredMatrix
from shared.model.checks import check_model
from shared.model.loader import load_model
from shared.model.matrix.quantized import concatenate
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.answers import check_answers
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.bits_and_bytes import Eights, Fours
from tests.fakes.stored.models import wants_of
from tests.unit.model.checkpoints import edit_json, edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix
    from tests.fakes.stored.base import Writer

#: Linears of [6, 64] that bitsandbytes 0.50.2 wrote on a CPU, and what it made of them.
WRITTEN = Path(__file__).parents[3] / "fakes" / "stored" / "bitsandbytes.safetensors"
WRITERS: dict[str, Writer] = {
    "nf4": Fours(),
    "fp4 nested": Fours("fp4", is_nested=True),
    "int8": Eights(),
}
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def matrices() -> dict[str, QuantizedMatrix]:
    own = find_format({"quantization_config": Fours().config})
    assert own is not None
    parts = Parts.of(all_headers([WRITTEN]), own)
    found = parts.tensors(own, lambda name: Module((name,))).values()
    return {
        each.module: open_matrix(each).read_alone()
        for each in found
        if isinstance(each, StoredMatrix)
    }


def test_matrices_are_what_the_library_reads() -> None:
    expected, found = load_file(WRITTEN), matrices()
    assert found.keys() == {"nf4", "nf4_nested", "fp4", "int8"}
    for name, matrix in found.items():
        wanted = expected[f"dense.{name}"]
        # The library multiplies an integer by its row's scale first, and then by 1 / 127.
        most = 1e-6 if name == "int8" else 0.0
        torch.testing.assert_close(matrix.dense(torch.float32), wanted, rtol=most, atol=0.0)


def test_rows_with_one_table_are_joined() -> None:
    found = matrices()
    both = concatenate([found["nf4"], found["nf4_nested"]])
    assert both is not None
    whole = torch.cat([found[name].dense(torch.float32) for name in ("nf4", "nf4_nested")])
    assert torch.equal(both.dense(torch.float32), whole)
    assert concatenate([found["nf4"], found["fp4"]]) is None


def write(writer: Writer, folder: Path) -> tuple[Path, Path]:
    plain = save(random_model("qwen2", seed=3, **SIZES), folder / "plain")
    dense = quantise_checkpoint(plain, folder / "stored", writer, wants_of(plain))
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    return folder / "stored", plain


@pytest.mark.parametrize("case", WRITERS)
def test_answers_equal_those_of_the_dense_model(case: str, tmp_path: Path) -> None:
    stored, dense = write(WRITERS[case], tmp_path)
    for impl in ("native", "torch", "transformers"):
        check_answers(stored, dense, model_impl=impl)


NAME = "model.layers.1.mlp.up_proj"


def drop_state(tensors: dict[str, Tensor]) -> None:
    del tensors[f"{NAME}.weight.quant_state.bitsandbytes__nf4"]


def cut(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.weight.absmax"] = tensors[f"{NAME}.weight.absmax"][:-1].clone()


def spoil(tensors: dict[str, Tensor]) -> None:
    tensors[f"{NAME}.weight.quant_state.bitsandbytes__nf4"][0] = 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_state, r"up_proj: '.weight.quant_state.bitsandbytes__nf4' is missing beside"),
        (cut, r"up_proj.weight.absmax' has shape \[383\], .* ask for \[384, 1\]"),
        (spoil, r"up_proj.weight.quant_state.bitsandbytes__nf4' is damaged"),
    ],
)
def test_damaged_files_are_refused_by_name(
    damage: Callable[[dict[str, Tensor]], None], message: str, tmp_path: Path
) -> None:
    stored, _ = write(Fours(), tmp_path)
    edit_tensors(stored / "model.safetensors", damage)
    with pytest.raises(ModelLoadError, match=message):
        load_model(stored, attention_backend="torch")


def test_another_storage_is_refused_by_name(tmp_path: Path) -> None:
    stored, _ = write(Fours(), tmp_path)
    own = {**Fours().config, "bnb_4bit_quant_storage": "bfloat16"}
    edit_json(stored / "config.json", quantization_config=own)
    with pytest.raises(ModelLoadError, match="bnb_4bit_quant_storage must be one of uint8"):
        check_model(stored)


def test_codes_in_another_order_are_refused_by_name(tmp_path: Path) -> None:
    stored, _ = write(Eights(), tmp_path)

    def turn(tensors: dict[str, Tensor]) -> None:
        tensors[f"{NAME}.weight_format"] = torch.tensor(1, dtype=torch.uint8)

    edit_tensors(stored / "model.safetensors", turn)
    with pytest.raises(ModelLoadError, match=r"up_proj.weight_format' is not 0"):
        load_model(stored, attention_backend="torch")
