"""Experts: what their choice and their products depend on, beside the parity of the families."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.errors import ModelLoadError
from shared.model.decoder.experts import choose
from shared.model.families.experts.qwen_moe import QWEN2_MOE
from shared.model.families.registry import FAMILIES
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.spec.feed_forwards import GroupScore, RouterScores, RouterSpec
from shared.model.spec.norms import NormPlace
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.model.spec.decoder import DecoderSpec

EXTRA = {
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 39,
    "shared_expert_intermediate_size": 56,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    spec = CheckpointSpec(
        architecture="qwen2_moe", num_layers=3, vocab_size=321, weight_std=0.2, extra=EXTRA
    )
    write_random_checkpoint(path, spec)
    return path


def logits(folder: Path, prompts: list[list[int]], **settings: Any) -> list[torch.Tensor]:
    model = load_model(folder, attention_backend="native", **settings).model
    return PagedDriver(model, block_size=8, chunk=13).generate(prompts, 6)[1]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_token_s_bits_do_not_depend_on_the_others_of_its_step(folder: Path, name: str) -> None:
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 5, 14, 31)]
    together = logits(folder, prompts, **SETTINGS[name])
    for prompt, with_others in zip(prompts, together, strict=True):
        (alone,) = logits(folder, [prompt], **SETTINGS[name])
        assert torch.equal(alone, with_others)


def test_narrow_weights_are_near(folder: Path) -> None:
    prompts = [random_prompt(31, vocab_size=321, seed=3)]
    (exact,) = logits(folder, prompts)
    for name in ("bfloat16", "int8"):
        (near,) = logits(folder, prompts, **SETTINGS[name])
        assert torch.cosine_similarity(exact[0], near[0], dim=0) > 0.98


@pytest.mark.parametrize("place", [NormPlace.PARALLEL, NormPlace.PARALLEL_TWO])
def test_experts_beside_the_attention_read_their_own_rows(
    place: NormPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No family has them so far: one of the user's own may."""

    def describe(raw: Mapping[str, Any]) -> DecoderSpec:
        spec = QWEN2_MOE.describe(raw)
        return replace(spec, layers=tuple(replace(each, norms=place) for each in spec.layers))

    monkeypatch.setitem(FAMILIES, QWEN2_MOE.architecture, replace(QWEN2_MOE, describe=describe))
    spec = CheckpointSpec(
        architecture="qwen2_moe", num_layers=3, vocab_size=321, weight_std=0.2, extra=EXTRA
    )
    write_random_checkpoint(tmp_path, spec)
    prompts = [random_prompt(31, vocab_size=321, seed=3)]
    (exact,) = logits(tmp_path, prompts)
    torchs = PagedDriver(
        load_model(tmp_path, attention_backend="torch").model, block_size=8, chunk=13
    ).generate(prompts, 6)[1]
    torch.testing.assert_close(exact, torchs[0], rtol=1e-3, atol=5e-4)
    (near,) = logits(tmp_path, prompts, **SETTINGS["int8"])
    assert torch.cosine_similarity(exact[0], near[0], dim=0) > 0.98


def test_groups_limit_the_choice_and_the_bias_no_weight() -> None:
    router = RouterSpec(
        num_experts=6,
        num_chosen=2,
        scores=RouterScores.SIGMOID,
        has_choice_bias=True,
        scale=3.0,
        num_groups=3,
        num_chosen_groups=1,
    )
    logits = torch.tensor([[3.0, -3.0, 1.0, 1.5, 0.0, 2.0]])
    # Expert 0 is the best one, but its group's two together are not.
    chosen, weights = choose(logits, router, torch.tensor([0.0, 0.0, 0.0, -0.1, 0.0, 0.0]))
    assert chosen.tolist() == [[2, 3]]
    scores = logits.sigmoid()[0, 2:4]
    torch.testing.assert_close(weights[0], 3.0 * scores / scores.sum())


def test_a_group_may_count_by_its_best_expert() -> None:
    router = RouterSpec(
        num_experts=6,
        num_chosen=2,
        is_normalised=False,
        scale=3.0,
        num_groups=3,
        num_chosen_groups=1,
        group_score=GroupScore.BEST,
    )
    logits = torch.tensor([[3.0, -3.0, 2.9, 2.9, 0.0, 2.0]])
    chosen, weights = choose(logits, router, None)
    assert chosen.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, 3.0 * logits.softmax(dim=-1)[:, :2])


def test_a_missing_expert_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.7.down_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=r"layers\.2\.mlp\.experts\.7\.down_proj.*is missing"):
        load_model(tmp_path)
