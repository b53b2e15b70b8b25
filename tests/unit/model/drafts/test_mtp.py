"""Layers that predict further tokens, as heads: what they compute, and which files have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ModelLoadError
from shared.model.attention.registry import get_backend
from shared.model.drafts.mtp import load_mtp
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.mtp import DELTA_SIZES, SPECS, VOCAB, MtpReference
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.models import wants_of
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.drafts.mtp import MtpHead
    from shared.model.loaded import LoadedModel

BLOCK_SIZE = 8
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("mtp"), SPECS)


def load(target: LoadedModel) -> MtpHead:
    return load_mtp(target.made_from, target.model, get_backend("torch"), CPU)


def guess_in_pieces(
    head: MtpHead, token_ids: torch.Tensor, hidden: torch.Tensor, first: int
) -> torch.Tensor:
    """What the head guesses when it reads 11 tokens, then the rest one by one."""
    length, spec = len(token_ids), head.spec
    table = list(range(1, 2 + length // BLOCK_SIZE))
    kinds, num_heads, head_dim = spec.attentions[0].kv_shape
    cache = poisoned_cache(1 + len(table), 1, num_heads, BLOCK_SIZE, head_dim, num_kinds=kinds)
    features, out = head.features(hidden), []
    for start, end in [(0, 11), *((n, n + 1) for n in range(11, length))]:
        metadata = make_metadata([end - start], [end], [table], BLOCK_SIZE)
        positions, piece = torch.arange(start, end) + first, slice(start, end)
        out.append(head.forward(token_ids[piece], features[piece], positions, cache, metadata))
    return torch.cat(out)


@pytest.mark.parametrize("executor", ["torch", "native"])
@pytest.mark.parametrize("family", SPECS)
def test_a_head_predicts_what_the_equations_say(family: str, executor: str, folder: Path) -> None:
    head = load(load_model(folder / family, model_impl=executor))
    reference = MtpReference(folder / family)
    generator = torch.Generator().manual_seed(3)
    token_ids = torch.randint(0, VOCAB, (29,), generator=generator)
    hidden = torch.randn(29, head.spec.hidden_size, generator=generator)
    guessed = guess_in_pieces(head, token_ids, hidden, first=5)
    expected = reference.guess(token_ids, hidden, first_position=5)
    torch.testing.assert_close(guessed, expected, rtol=2e-4, atol=2e-4)
    logits = reference.logits(expected)
    torch.testing.assert_close(head.compute_logits(guessed), logits, rtol=5e-4, atol=5e-4)
    assert torch.equal(head.most_likely(guessed), logits.argmax(-1))


def changed(source: Path, path: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy with other tensors; None: without it."""
    path.mkdir()
    (path / "config.json").write_bytes((source / "config.json").read_bytes())
    found = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        found.pop(name, None)
        if tensor is not None:
            found[name] = tensor
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_copies_of_embedding_and_output_head_are_not_read(folder: Path, tmp_path: Path) -> None:
    """Published files have them, equal to the target's."""
    noise = torch.randn(VOCAB, SPECS["deepseek_v3"].hidden_size)
    own = "model.layers.3."
    copies = {f"{own}embed_tokens.weight": noise, f"{own}shared_head.head.weight": noise.clone()}
    path = changed(folder / "deepseek_v3", tmp_path / "copies", **copies)
    token_ids, hidden = torch.arange(20) * 7, torch.randn(20, noise.shape[1])
    first, second = (
        guess_in_pieces(load(load_model(each)), token_ids, hidden, first=0)
        for each in (folder / "deepseek_v3", path)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["eh_proj.weight", "mlp.experts.4.up_proj.weight"])
def test_a_missing_part_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    full = f"model.layers.2.{name}"
    path = changed(folder / "glm4_moe", tmp_path / "lacking", **{full: None})
    target = load_model(path)
    with pytest.raises(ModelLoadError, match=rf"'{full}' is missing \(1 of 3\d are\)"):
        load(target)


def test_a_part_of_another_shape_or_kind_is_named(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.2.hnorm.weight"
    path = changed(folder / "glm4_moe", tmp_path / "shape", **{name: torch.ones(95)})
    with pytest.raises(ModelLoadError, match=rf"'{name}' has shape \[95\]"):
        load(load_model(path))
    name = "model.layers.2.eh_proj.bias"
    path = changed(folder / "glm4_moe", tmp_path / "kind", **{name: torch.ones(96)})
    with pytest.raises(ModelLoadError, match=rf"'{name}' is not part of a layer that predicts"):
        load(load_model(path))


def test_a_checkpoint_without_the_layer_is_told_what_to_do(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "without"
    spec = CheckpointSpec(architecture="qwen3_5_text", num_layers=4, extra=DELTA_SIZES)
    write_random_checkpoint(path, spec)
    with pytest.raises(ModelLoadError, match=r"has no layer .* \(MTP\), .*; ngram, suffix and"):
        load(load_model(path))
    write_random_checkpoint(tmp_path / "llama", CheckpointSpec())
    with pytest.raises(ModelLoadError, match=r"\(MTP\) of LlamaForCausalLM is known here; ngram"):
        load(load_model(tmp_path / "llama"))


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("case", ["ct int4 uneven", "fp8 blocks"])
def test_a_head_is_read_in_the_format_of_its_file(
    family: str, case: str, folder: Path, tmp_path: Path
) -> None:
    """The same as from a file of what its codes mean, but for inputs that FP8 rounds."""
    paths = tmp_path / "stored", tmp_path / "dense"
    wants = wants_of(folder / family, columns=32, rows=9)
    dense = quantise_checkpoint(folder / family, paths[0], ALL[case], wants)
    changed(folder / family, paths[1], **dense)
    stored, plain = (load(load_model(path, model_impl="torch")) for path in paths)
    assert (stored.projection.product is not None) == (case == "fp8 blocks")
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(20, stored.spec.hidden_size, generator=generator)
    token_ids = torch.arange(20) * 7
    guessed, expected = (
        guess_in_pieces(head, token_ids, hidden, first=0) for head in (stored, plain)
    )
    if case == "fp8 blocks":
        assert not torch.equal(guessed, expected)
        # Of some token rounding may choose another expert.
        assert torch.cosine_similarity(guessed, expected).median() > 0.995
    else:
        torch.testing.assert_close(guessed, expected, rtol=1e-4, atol=1e-4)


def test_weights_made_of_a_seed_have_a_head(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "qwen3_next" / "config.json").read_bytes())
    edit_json(tmp_path / "config.json", num_nextn_predict_layers=0)
    target = load_model(tmp_path, load_format="dummy", seed=3, model_impl="torch")
    before = [parameter.clone() for parameter in target.model.parameters()]
    first, second = load(target), load(target)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert all(map(torch.equal, before, target.model.parameters()))
