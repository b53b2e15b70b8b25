"""Draft heads: what they compute, and which files they accept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ModelLoadError
from shared.model.attention.registry import get_backend
from shared.model.drafts.eagle import load_eagle
from shared.model.drafts.eagle3 import load_eagle3
from shared.model.drafts.medusa import load_medusa
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.model.draft_reference import Eagle3Reference, EagleReference, medusa_logits
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache
from tests.unit.model.checkpoints import edit_json, edit_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.drafts.base import FeatureHead
    from shared.model.loaded import LoadedModel

BLOCK_SIZE, VOCAB, LAYERS = 8, 300, 6


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_random_checkpoint(path, CheckpointSpec(num_layers=LAYERS, vocab_size=VOCAB))
    return path


@pytest.fixture(scope="module", params=["torch", "native"])
def target(target_dir: Path, request: pytest.FixtureRequest) -> LoadedModel:
    return load_model(target_dir, attention_backend=request.param)


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return load_file(path / "model.safetensors"), json.loads((path / "config.json").read_text())


def write(path: Path, target_dir: Path, method: str, **fields: Any) -> Path:
    write_random_head(path, target_dir, HeadSpec(method=method, **fields))
    return path


def load(path: Path, target: LoadedModel) -> FeatureHead:
    raw = json.loads((path / "config.json").read_text())
    load_head = load_eagle3 if "draft_vocab_size" in raw else load_eagle
    return load_head(path, target.model, get_backend("torch"))


def guess_in_pieces(
    head: FeatureHead, token_ids: torch.Tensor, hidden: torch.Tensor, first: int
) -> torch.Tensor:
    """What the head guesses when it reads 11 tokens, then the rest one by one."""
    length, spec = len(token_ids), head.spec
    table = list(range(1, 2 + length // BLOCK_SIZE))
    cache = poisoned_cache(
        1 + len(table),
        spec.num_layers,
        spec.attention.num_kv_heads,
        BLOCK_SIZE,
        spec.attention.head_dim,
    )
    features = head.features(hidden)
    out = []
    for start, end in [(0, 11), *((n, n + 1) for n in range(11, length))]:
        metadata = make_metadata([end - start], [end], [table], BLOCK_SIZE)
        positions = torch.arange(start, end) + first
        piece = slice(start, end)
        out.append(head.forward(token_ids[piece], features[piece], positions, cache, metadata))
    return torch.cat(out)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("eagle", {"num_layers": 2}),
        ("eagle", {"num_layers": 1, "as_bin": True}),
        ("eagle3", {"draft_vocab_size": 100}),
    ],
)
def test_a_head_guesses_what_its_definition_says(
    method: str, fields: dict[str, Any], target: LoadedModel, target_dir: Path, tmp_path: Path
) -> None:
    plain = write(tmp_path / "plain", target_dir, method, **{**fields, "as_bin": False})
    tensors, raw = read(plain)
    head = load(write(tmp_path / "stored", target_dir, method, **fields), target)
    reference = (Eagle3Reference if method == "eagle3" else EagleReference)(tensors, raw)
    generator = torch.Generator().manual_seed(3)
    token_ids = torch.randint(0, VOCAB, (29,), generator=generator)
    size = (3 if method == "eagle3" else 1) * target.spec.hidden_size
    hidden = torch.randn(29, size, generator=generator)
    guessed = guess_in_pieces(head, token_ids, hidden, first=5)
    expected = reference.guess(token_ids, reference.features(hidden), first_position=5)
    torch.testing.assert_close(guessed, expected, rtol=2e-4, atol=2e-4)
    if isinstance(reference, Eagle3Reference):
        assert torch.equal(head.most_likely(guessed), reference.most_likely(expected))
        known = tensors["t2d"].nonzero().flatten().tolist()
        assert set(head.most_likely(guessed).tolist()) <= set(known)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_of_a_target_with_chunks_has_llamas_layers(method: str, tmp_path: Path) -> None:
    target_dir = tmp_path / "target"
    write_random_checkpoint(target_dir, SPECS["chunk"])
    path = write(tmp_path / "head", target_dir, method)
    # Of two layers there are no low, middle and high ones.
    edit_json(path / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    head = load(path, load_model(target_dir))
    assert head.spec.num_layers == 1
    assert not head.spec.has_chunks


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_without_an_embedding_reads_the_target_s(
    method: str, target: LoadedModel, target_dir: Path, tmp_path: Path
) -> None:
    without = write(tmp_path / "without", target_dir, method, has_embedding=False)
    tensors, _ = read(without)
    embedding = load_file(target_dir / "model.safetensors")["model.embed_tokens.weight"]
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "config.json").write_bytes((without / "config.json").read_bytes())
    save_file(tensors | {"embed_tokens.weight": embedding}, tmp_path / "with/model.safetensors")
    token_ids = torch.arange(20) * 7
    size = (3 if method == "eagle3" else 1) * target.spec.hidden_size
    hidden = torch.randn(20, size, generator=torch.Generator().manual_seed(1))
    own, shared = (
        guess_in_pieces(load(tmp_path / name, target), token_ids, hidden, first=0)
        for name in ("with", "without")
    )
    assert torch.equal(own, shared)


def test_medusa_heads_guess_what_their_definition_says(
    target: LoadedModel, target_dir: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, target_dir, "medusa", num_layers=2, num_heads=3)
    tensors, _ = read(path)
    heads = load_medusa(path, target.model)
    hidden = torch.randn(4, target.spec.hidden_size)
    logits = heads.compute_logits(hidden, 2)
    expected = torch.stack([medusa_logits(tensors, hidden, head, 2) for head in range(2)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(heads.most_likely(hidden, 2), expected.argmax(-1).T)


@pytest.mark.parametrize("form", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "renamed"])
def test_medusa_heads_come_in_several_forms(form: str, target_dir: Path, tmp_path: Path) -> None:
    target = load_model(target_dir, attention_backend="torch")
    path = write(tmp_path / "a", target_dir, "medusa", num_heads=2)
    tensors, raw = read(path)
    other = tmp_path / "b"
    other.mkdir()
    # Published configs name fewer heads than there are.
    (other / "config.json").write_text(json.dumps({"medusa_num_heads": 1, "medusa_num_layers": 1}))
    if form == "renamed":
        renamed = {}
        for name, tensor in tensors.items():
            head = name.split(".")[1]
            rest = name.removeprefix(f"medusa_head.{head}.")
            new = f"blocks.{head}.{rest.replace('0.linear.', 'layers.0.')}"
            renamed[f"lm_heads.{head}.weight" if rest == "1.weight" else new] = tensor
        save_file(renamed, other / "model.safetensors")
    else:
        bare = {name.removeprefix("medusa_head."): t for name, t in tensors.items()}
        (torch.save if form.endswith(".pt") else save_file)(bare, other / form)
    first, second = (load_medusa(p, target.model) for p in (path, other))
    hidden = torch.randn(3, raw["hidden_size"])
    assert second.num_heads == 2
    assert torch.equal(first.compute_logits(hidden, 2), second.compute_logits(hidden, 2))


@pytest.mark.parametrize(
    ("method", "fields", "changes", "message"),
    [
        ("eagle", {}, {"vocab_size": 299}, "vocab_size is 299, the target's is 300"),
        (
            "eagle",
            {},
            {"intermediate_size": 64},
            r"gate_proj.weight has shape \[128, 64\], the config asks for 64 rows",
        ),
        (
            "eagle",
            {},
            {"hidden_size": 32},
            r"o_proj.weight has shape \[64, 64\], the config asks for 32 rows",
        ),
        ("eagle3", {}, {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        (
            "eagle3",
            {},
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]},
            "eagle_aux_hidden_state_layer_ids",
        ),
        ("medusa", {}, {"medusa_num_layers": 0}, "medusa_num_layers must be between 1 and 64"),
        ("medusa", {}, {"medusa_num_heads": 9}, "medusa_num_heads asks for more than the 4"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(
    method: str,
    fields: dict[str, Any],
    changes: dict[str, Any],
    message: str,
    target_dir: Path,
    tmp_path: Path,
) -> None:
    target = load_model(target_dir, attention_backend="torch")
    path = write(tmp_path, target_dir, method, **fields)
    edit_json(path / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=message):
        load_medusa(path, target.model) if method == "medusa" else load(path, target)


@pytest.mark.parametrize(
    ("method", "name", "message"),
    [
        ("eagle", "fc.weight", "'fc.weight' is missing"),
        ("eagle", "layers.0.mlp.up_proj.weight", "up_proj.weight' is missing"),
        ("eagle3", "d2t", "'d2t' is missing"),
        ("eagle3", "lm_head.weight", "'lm_head.weight' is missing"),
        ("medusa", "medusa_head.1.0.linear.bias", "'1.0.linear.bias' is missing"),
    ],
)
def test_a_missing_tensor_is_named(
    method: str, name: str, message: str, target_dir: Path, tmp_path: Path
) -> None:
    target = load_model(target_dir, attention_backend="torch")
    path = write(tmp_path, target_dir, method, draft_vocab_size=50)
    edit_tensors(path / "model.safetensors", lambda tensors: tensors.__delitem__(name))
    with pytest.raises(ModelLoadError, match=message):
        load_medusa(path, target.model) if method == "medusa" else load(path, target)


def test_tables_that_lead_out_of_the_vocabulary_and_unknown_tensors_are_refused(
    target_dir: Path, tmp_path: Path
) -> None:
    target = load_model(target_dir, attention_backend="torch")
    path = write(tmp_path / "a", target_dir, "eagle3", draft_vocab_size=50)
    edit_tensors(
        path / "model.safetensors", lambda tensors: tensors.update(d2t=tensors["d2t"] + VOCAB)
    )
    with pytest.raises(ModelLoadError, match="'d2t' leads out of 300 tokens"):
        load(path, target)
    path = write(tmp_path / "b", target_dir, "eagle")
    edit_tensors(path / "model.safetensors", lambda tensors: tensors.update(odd=torch.zeros(1)))
    with pytest.raises(ModelLoadError, match="'odd' is not part of such a head"):
        load(path, target)
    (path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelLoadError, match="damaged or truncated"):
        load(path, target)
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"has none of model.safetensors, pytorch_model.bin"):
        load(path, target)
    (path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ModelLoadError, match="damaged or not only tensors"):
        load(path, target)


@pytest.mark.parametrize("nested", [False, True])
def test_layers_are_counted_as_their_config_counts(
    nested: bool, target_dir: Path, tmp_path: Path
) -> None:
    target = load_model(target_dir, attention_backend="torch")
    path = write(tmp_path, target_dir, "eagle3")
    assert load(path, target).captured_layers == (2, 3, 3)
    named = {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}
    edit_json(path / "config.json", **({"eagle_config": named} if nested else named))
    assert load(path, target).captured_layers == ((1, 3, 6) if nested else (0, 2, 5))
