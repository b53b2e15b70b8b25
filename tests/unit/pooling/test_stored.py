"""What sentence-transformers' files say, old and new, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from shared.errors import ModelLoadError
from shared.pooling.base import PoolingKind
from shared.pooling.head import ModelSizes, read_head
from shared.pooling.stored import read_stored_pooling
from tests.unit.pooling.checkpoints import put_json, put_modules

if TYPE_CHECKING:
    from pathlib import Path

SIZES = ModelSizes(hidden_size=6, vocab_size=9, max_len=50, is_causal=False)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"word_embedding_dimension": 6, "pooling_mode_cls_token": True}, PoolingKind.CLS),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, PoolingKind.MEAN),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, PoolingKind.LAST),
        ({"embedding_dimension": 6, "pooling_mode": "cls"}, PoolingKind.CLS),
        ({"pooling_mode": ["lasttoken"]}, PoolingKind.LAST),
        ({}, PoolingKind.MEAN),
    ],
)
def test_kinds(tmp_path: Path, config: dict[str, Any], kind: PoolingKind) -> None:
    put_modules(tmp_path, "Transformer", "Pooling")
    put_json(tmp_path / "1_Pooling" / "config.json", config)
    put_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 20})
    facts = read_head(tmp_path, {}, SIZES).facts
    assert (facts.kind, facts.normalizes, facts.max_len) == (kind, False, 20)


def test_nothing_said(tmp_path: Path) -> None:
    facts = read_head(tmp_path, {"matryoshka_dimensions": [4, 2]}, SIZES).facts
    assert (facts.kind, facts.normalizes, facts.max_len) == (PoolingKind.MEAN, True, 50)
    assert facts.dimensions == (2, 4)


@pytest.mark.parametrize(
    ("modules", "config", "named"),
    [
        (("Transformer", "Pooling"), {"pooling_mode": "max"}, "max"),
        (("Transformer", "Pooling"), {"pooling_mode": ["cls", "mean"]}, "cls and mean"),
        (("Transformer", "Pooling"), {"pooling_mode": 3}, "3"),
        (("Transformer", "Pooling"), {"include_prompt": False}, "include_prompt"),
        (("Transformer", "Pooling"), [], "list"),
        (("Pooling",), {}, "Pooling"),
        (("Transformer", "Pooling", "CNN"), {}, "CNN"),
        (("Transformer", "Dense"), {}, "Dense"),
        (("Transformer", "Pooling:../up"), {}, "up"),
        (("Transformer", "Pooling:gone"), {}, "gone"),
        (("Transformer", "Pooling", "Transformer"), {}, "Transformer"),
    ],
)
def test_bad_modules(tmp_path: Path, modules: tuple[str, ...], config: Any, named: str) -> None:
    put_modules(tmp_path, *modules)
    put_json(tmp_path / "1_Pooling" / "config.json", config)
    with pytest.raises(ModelLoadError, match=named):
        read_stored_pooling(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("modules.json", {}, "list of modules"),
        ("modules.json", [{"type": 3, "path": ""}], "type and a path"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case"),
        ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "prompts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "b"}, "default_prompt_name"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: Any, named: str) -> None:
    put_json(tmp_path / name, content)
    with pytest.raises(ModelLoadError, match=named):
        read_stored_pooling(tmp_path)


@pytest.mark.parametrize(
    ("changes", "weight", "named"),
    [
        ({"activation_function": "os.system"}, torch.zeros(5, 6), r"os\.system"),
        ({"in_features": 7}, torch.zeros(5, 7), "7 numbers"),
        ({"in_features": 0}, torch.zeros(5, 6), "in_features"),
        ({}, torch.zeros(4, 6), "shape"),
        ({}, torch.full((5, 6), torch.nan), "not finite"),
        ({}, torch.zeros(5, 6, dtype=torch.int32), "int32"),
        ({"bias": True}, torch.zeros(5, 6), r"linear\.bias"),
        ({"module_input_name": "token_embeddings"}, torch.zeros(5, 6), "pooled"),
    ],
)
def test_bad_dense(
    tmp_path: Path, changes: dict[str, Any], weight: torch.Tensor, named: str
) -> None:
    put_modules(tmp_path, "Transformer", "Pooling", "Dense")
    put_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    config = {"in_features": 6, "out_features": 5, "bias": False, **changes}
    put_json(tmp_path / "2_Dense" / "config.json", config)
    save_file({"linear.weight": weight}, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelLoadError, match=named):
        read_head(tmp_path, {}, SIZES)
