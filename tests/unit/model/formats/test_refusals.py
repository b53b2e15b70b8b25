"""What cannot be loaded is refused at start, by file, and by tensor or key."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.errors import ModelLoadError
from shared.model.checkpoint.files.checkpoint_files import INDEX_NAME
from shared.model.checkpoint.patterns import matches
from shared.model.checks import check_model
from shared.model.loader import load_model
from tests.oracles.base import CONFIG, FOLDER, TENSORS
from tests.unit.model.checkpoints import edit_json, edit_tensors, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

GPTQ, QUARK, KV = "gptqmodel-4", "quark-int8", "quark-fp8-kv"
MATRIX = "model.layers.0.mlp.down_proj"
#: It tries every way to cut a name in parts.
ENDLESS = r"(?:[\w.]|[\w.]{2}|[\w.]{3})+[A-Z]"
Edit = "Callable[[Path], None]"


def keys(**changes: Any) -> Edit:
    """Change keys of the config."""
    return lambda folder: edit_json(folder / CONFIG, **changes)


def quantization(**changes: Any) -> Edit:
    """Change keys of the quantization_config."""

    def edit(folder: Path) -> None:
        own = json.loads((folder / CONFIG).read_text())["quantization_config"]
        edit_json(folder / CONFIG, quantization_config={**own, **changes})

    return edit


def tensors(change: Callable[[dict[str, Tensor]], None]) -> Edit:
    """Change tensors."""
    return lambda folder: edit_tensors(folder / TENSORS, change)


def replaced(suffix: str, change: Callable[[Tensor], Tensor]) -> Edit:
    """Change a tensor of a matrix."""

    def edit(own: dict[str, Tensor]) -> None:
        own[MATRIX + suffix] = change(own[MATRIX + suffix]).contiguous()

    return tensors(edit)


def text(old: str, new: str) -> Edit:
    """Change the config as a text."""

    def edit(folder: Path) -> None:
        path = folder / CONFIG
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "file", "message"),
    [
        (GPTQ, quantization(quant_method="own"), CONFIG, "quantization_config.quant_method 'own'"),
        (GPTQ, quantization(bits="4"), CONFIG, "quantization_config.bits must be an integer"),
        (GPTQ, quantization(group_size=2**40), CONFIG, "group_size must be at most 1048576"),
        (GPTQ, keys(architectures=5), CONFIG, "architectures must be a list of names, not 5"),
        (GPTQ, keys(intermediate_size="wide"), CONFIG, "of intermediate_size: invalid literal"),
        (GPTQ, keys(rms_norm_eps=None), CONFIG, "of rms_norm_eps: float() argument"),
        (GPTQ, keys(hidden_act=["silu"]), CONFIG, "of hidden_act: unhashable"),
        (GPTQ, keys(vocab_size=2**40), CONFIG, "vocab_size must be at most"),
        (GPTQ, keys(max_position_embeddings=2**26), CONFIG, "max_position_embeddings, or rope_sc"),
        (GPTQ, keys(torch_dtype="float64", dtype=None), CONFIG, "torch_dtype 'float64'"),
        (GPTQ, text("{", '{"a": NaN, '), CONFIG, "not valid JSON: it has NaN"),
        (GPTQ, text("{", '{"\\ud800": 1, '), CONFIG, "not valid JSON: 'utf-8' codec"),
        (GPTQ, text("{", '{"a": ' + "[" * 99_999 + "]" * 99_999 + ","), CONFIG, "not valid JSON"),
        (GPTQ, tensors(lambda own: own.pop(f"{MATRIX}.scales")), TENSORS, ".scales' is missing"),
        (GPTQ, replaced(".scales", lambda own: own[:, 1:]), TENSORS, ".scales' has shape"),
        (GPTQ, replaced(".qweight", lambda own: own.view(torch.int8)), TENSORS, "has dtype I8"),
        (GPTQ, replaced(".scales", lambda own: own * torch.nan), TENSORS, "is not finite"),
        (GPTQ, quantization(group_size=16), TENSORS, ".scales' has shape"),
        (GPTQ, quantization(dynamic={f"+:{ENDLESS}": {}}), TENSORS, "dynamic: '(?:"),
        (QUARK, quantization(exclude=[MATRIX]), TENSORS, f"{MATRIX} is in quantization_config.ex"),
        (QUARK, quantization(exclude=["re:a{9999}{9999}"]), TENSORS, "exclude: 'a{9999}{9999}' is"),
        (KV, quantization(kv_cache_quant_config=5), CONFIG, "kv_cache_quant_config must be an obj"),
    ],
)
def test_a_refusal_names_file_and_what_of_it(
    name: str, edit: Callable[[Path], None], file: str, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(FOLDER / name, folder)
    edit(folder)
    with pytest.raises(ModelLoadError, match=re.escape(message)) as caught:
        load_model(folder, attention_backend="torch")
    assert file in str(caught.value)
    assert str(caught.value).encode()


def test_a_group_that_does_not_divide_is_refused(
    stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    shutil.copytree(stored("qwen2", "ct int4 uneven")[0], tmp_path, dirs_exist_ok=True)
    text('"group_size": 32', '"group_size": 48')(tmp_path)
    message = r"model\.safetensors: tensor 'model.*' has \d+ columns, .* no whole groups of 48"
    with pytest.raises(ModelLoadError, match=message):
        check_model(tmp_path)


@pytest.mark.parametrize("name", ["", "a" * 3000, ".", "..", "none.safetensors", "a/b", "\0"])
def test_an_index_names_files_of_its_folder(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, num_layers=1, num_shards=2)
    weight_map = json.loads((folder / INDEX_NAME).read_text())["weight_map"]
    edit_json(folder / INDEX_NAME, weight_map={**weight_map, "lm_head.weight": name})
    with pytest.raises(ModelLoadError, match=INDEX_NAME):
        check_model(folder)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("re:model\\.layers\\.[0-3]\\..*_proj", True),
        ("re:layers", False),
        ("re:^(?!.*down).*", False),
        ("re:(?i)MODEL", True),
        ("*.down_proj", True),
        ("re:" + "(?:" * 30 + "model.*" + ")" * 30, True),
        ("re:.{5,40}proj", True),
    ],
)
def test_patterns_are_those_of_the_standard_library(pattern: str, fits: bool) -> None:
    assert matches(pattern, [MATRIX], "ignore") is fits


@pytest.mark.parametrize(
    "pattern",
    [f"re:{ENDLESS}", "re:(", "re:a{99999999999}", "re:" + "(" * 3000, "re:a{99}{99}{99}"],
)
def test_a_bad_expression_is_named_in_a_second(pattern: str) -> None:
    with pytest.raises(ModelLoadError, match=r"quantization_config\.ignore: '") as caught:
        matches(pattern, [MATRIX], "quantization_config.ignore")
    assert len(str(caught.value)) < 250
