"""Loading: what fits is loaded exactly, what does not is refused by name."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from structlog.testing import capture_logs

from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.loading.weights import tensor_of
from shared.model.checks import check_model
from shared.model.families.base import FURTHER
from shared.model.families.registry import stored_names
from shared.model.loader import load_model as load_any_model
from tests.unit.model.checkpoints import edit_json, edit_tensors, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: With weights to look at: the native model packs them.
load_model = partial(load_any_model, attention_backend="torch")

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
#: Of families that do without the usual keys.
SETTINGS = {
    "gemma4_text": {
        "layer_types": ["full_attention"] * 2,
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 0,
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
}
FURTHER_LAYERS = FURTHER.replace(" ", "_")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_tensor_lands_in_its_place(num_shards: int, tmp_path: Path) -> None:
    write(tmp_path, architecture="qwen2", num_shards=num_shards)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) == num_shards
    stored = {name: tensor for path in shards for name, tensor in load_file(path).items()}
    loaded = load_model(tmp_path)
    places = stored_names(loaded.spec)
    assert places.keys() == stored.keys()
    for name, place in places.items():
        assert torch.equal(tensor_of(loaded.model, place.part), stored[name])
    assert loaded.num_weight_bytes == sum(t.numel() * 4 for t in stored.values())


def test_the_dtype_is_the_checkpoint_s_or_the_one_asked_for(tmp_path: Path) -> None:
    write(tmp_path, dtype="bfloat16")
    assert load_model(tmp_path).dtype == torch.bfloat16
    assert load_model(tmp_path, dtype="float32").model.embedding.dtype == torch.float32
    with pytest.raises(ConfigError, match="dtype 'int4' is unknown; known: auto, float32"):
        load_model(tmp_path, dtype="int4")
    with pytest.raises(ConfigError, match="load format 'gguf' is unknown"):
        load_model(tmp_path, load_format="gguf")


def test_dummy_weights_follow_from_the_seed_and_need_no_files(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, again, other = (
        load_model(tmp_path, load_format="dummy", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.model.embedding, again.model.embedding)
    assert first.fingerprint == again.fingerprint
    assert not torch.equal(first.model.embedding, other.model.embedding)
    assert first.fingerprint != other.fingerprint


def test_a_model_can_be_made_on_another_device(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = load_model(tmp_path, load_format="dummy", device=torch.device("meta"))
    assert {p.device.type for p in loaded.model.parameters()} == {"meta"}
    assert {table.device.type for table in loaded.model.cos_sin} == {"meta"}


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    write(tmp_path, tie_word_embeddings=True)
    assert HEAD not in load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path).model
    assert model.lm_head is model.embedding


def store_head(change: float) -> Callable[[dict[str, torch.Tensor]], None]:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBEDDING] + change

    return edit


def test_a_stored_head_counts_only_if_it_differs_though_the_config_says_tied(
    tmp_path: Path,
) -> None:
    """As in transformers 5, which is asked too."""
    write(tmp_path, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    edit_tensors(path, store_head(0.0))
    model = load_model(tmp_path).model
    assert model.lm_head is model.embedding
    edit_tensors(path, store_head(0.5))
    model = load_model(tmp_path).model
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(model.lm_head, oracle.lm_head.weight)
    assert torch.equal(model.lm_head, model.embedding + 0.5)


def test_a_tied_head_alone_serves_as_embedding(tmp_path: Path) -> None:
    write(tmp_path, tie_word_embeddings=True)
    embedding = load_model(tmp_path).model.embedding

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors.pop(EMBEDDING)

    edit_tensors(tmp_path / "model.safetensors", rename)
    model = load_model(tmp_path).model
    assert torch.equal(model.embedding, embedding)
    assert model.lm_head is model.embedding


def test_a_long_load_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path)
    with capture_logs() as short:
        load_model(folder)
    monkeypatch.setattr("shared.model.checkpoint.loading.progress.EACH_S", 0.0)
    monkeypatch.setattr("shared.model.loader._LONG_S", 0.0)
    with capture_logs() as long:
        load_model(folder)
    assert not any(each["event"] in ("weights_loading", "model_loaded") for each in short)
    lines = [each for each in long if each["event"] == "weights_loading"]
    total = len(load_file(folder / "model.safetensors"))
    assert [(each["tensors"], each["of"]) for each in lines] == [
        (number, total) for number in range(1, total + 1)
    ]
    assert long[-1]["event"] == "model_loaded"


@pytest.mark.parametrize(
    ("architecture", "name", "shape", "what"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", (8,), "rotary_angles"),
        ("gpt2", "h.0.attn.bias", (1, 1, 9, 9), "causal_masks"),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias", (), "causal_masks"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias", (1, 1, 9, 9), "causal_masks"),
        (
            "gemma4_text",
            "model.layers.1.self_attn.k_proj.weight",
            (1024, 64),
            "keys_and_values_that_a_layer_shares",
        ),
        ("qwen3_5_text", "mtp.layers.0.mlp.up_proj.weight", (2, 2), FURTHER_LAYERS),
        ("ernie4_5_moe", "model.mtp_linear_proj.0.weight", (2, 2), FURTHER_LAYERS),
    ],
)
def test_what_is_rightly_not_read_is_counted(
    architecture: str, name: str, shape: tuple[int, ...], what: str, tmp_path: Path
) -> None:
    write(tmp_path, architecture=architecture, extra=SETTINGS.get(architecture, {}))
    path = tmp_path / "model.safetensors"
    edit_tensors(path, lambda tensors: tensors.update({name: torch.ones(shape)}))
    with capture_logs() as logs:
        load_model(tmp_path)
    assert [each.get(what) for each in logs if each["event"] == "tensors_not_read"] == [1]


@pytest.mark.parametrize(
    ("architecture", "name", "shape"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("llama", "mtp.layers.0.mlp.up_proj.weight", (2, 2)),
        ("llama", "vision_tower.patch_embed.weight", (2, 2)),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias", (64,)),
    ],
)
def test_what_could_be_a_part_of_the_decoder_is_refused(
    architecture: str, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    write(tmp_path, architecture=architecture)
    path = tmp_path / "model.safetensors"
    edit_tensors(path, lambda tensors: tensors.update({name: torch.ones(shape)}))
    with pytest.raises(ModelLoadError, match=rf"{path}: tensor '{name}' is not part of"):
        check_model(tmp_path)


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[Q_PROJ]


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ][:-1].clone()


def quantize(tensors: dict[str, torch.Tensor]) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.float8_e4m3fn)


def to_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.int8)


def add_unknown(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.self_attn.q_proj.weight_scale"] = torch.ones(1)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop, f"tensor '{Q_PROJ}' is missing"),
        (
            reshape,
            rf"tensor '{Q_PROJ}' has shape \[63, 64\], the config asks for \[64, 64\] because of "
            r"num_attention_heads 4, head_dim 16: the config or the file is another model's",
        ),
        (quantize, f"tensor '{Q_PROJ}' has dtype torch.float8_e4m3fn"),
        (to_integers, f"tensor '{Q_PROJ}' has dtype torch.int8"),
        (add_unknown, "tensor '.*weight_scale' is not part of LlamaForCausalLM"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    edit: Callable[[dict[str, torch.Tensor]], None], message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    edit_tensors(path, edit)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_model(tmp_path)
    assert str(path) in str(caught.value)


def shard(tmp_path: Path, number: int) -> Path:
    return tmp_path / f"model-{number:05d}-of-00003.safetensors"


def test_the_index_says_which_shard_lacks_a_tensor(tmp_path: Path) -> None:
    write(tmp_path, num_shards=3)
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    path = tmp_path / weight_map[Q_PROJ]
    edit_tensors(path, drop)
    with pytest.raises(ModelLoadError, match=f"{path}: tensor '{Q_PROJ}' is missing"):
        load_model(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, num_shards=3)
    shard(tmp_path, 2).unlink()
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003\.safetensors is missing"):
        load_model(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path, num_shards=3)
    first = load_file(shard(tmp_path, 1))
    edit_tensors(shard(tmp_path, 3), lambda tensors: tensors.update(first))
    with pytest.raises(ModelLoadError, match="is in another shard already"):
        load_model(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_named(kept: float, tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ModelLoadError, match="is damaged or truncated") as caught:
        load_model(tmp_path)
    assert str(path) in str(caught.value)


def test_no_weights_at_all(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"has none of model\.safetensors, "):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "has no weight_map"),
        ({}, "has no weight_map"),
        ({"weight_map": {}}, "has no weight_map"),
        ({"weight_map": {"a": 1}}, "values are not file names"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "not a file of its directory"),
    ],
)
def test_a_broken_index_is_named(index: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    content = index if isinstance(index, str) else json.dumps(index)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_model(tmp_path)
    assert str(path) in str(caught.value)


def test_a_config_with_more_layers_than_stored_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    edit_json(tmp_path / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelLoadError, match=r"model.layers.2.* is missing \(9 of 30 are\)"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": 2**24}, {"intermediate_size": 2**20}, {"num_hidden_layers": 4096}],
)
def test_a_config_that_asks_for_more_than_is_stored_allocates_nothing(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    write(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelLoadError, match="tensor"):
        load_model(tmp_path)


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes((2**40).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ModelLoadError, match="damaged"):
        load_model(tmp_path)
