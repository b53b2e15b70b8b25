"""What is read of an adapter's folder, and what is refused, by name."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from shared.adapters.config import CONFIG_NAME
from shared.adapters.reading import read_adapter
from shared.adapters.tensors import FILE_NAME
from shared.errors import AdapterError, InvalidRequestError
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.rpc.status import http_status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from shared.adapters.adapter import Adapter
    from shared.model.loaded import LoadedModel

#: The layers of the base.
NUM_LAYERS, HIDDEN, INNER = 2, 48, 72
Q, V, DOWN = "self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"
FIRST = f"base_model.model.model.layers.0.{Q}"


def base_of(folder: Path, **changes: Any) -> LoadedModel:
    spec = CheckpointSpec(
        **{
            "num_layers": NUM_LAYERS,
            "hidden_size": HIDDEN,
            "num_heads": 3,
            "num_kv_heads": 1,
            "head_dim": 16,
            "intermediate_size": INNER,
            "vocab_size": 300,
            "dtype": "float32",
            **changes,
        }
    )
    write_random_checkpoint(folder, spec)
    return load_model(folder, attention_backend="torch")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return base_of(tmp_path_factory.mktemp("base"))


def tensors_of(rank: int = 4, modules: tuple[str, ...] = (Q, V, DOWN)) -> dict[str, Tensor]:
    """An adapter's tensors, by PEFT's names."""
    sizes = {Q: (HIDDEN, 48), V: (HIDDEN, 16), DOWN: (INNER, HIDDEN)}
    generator = torch.Generator().manual_seed(rank)
    found = {}
    for layer in range(NUM_LAYERS):
        for module in modules:
            name = f"base_model.model.model.layers.{layer}.{module}"
            in_size, out_size = sizes[module]
            found[f"{name}.lora_A.weight"] = torch.randn(rank, in_size, generator=generator)
            found[f"{name}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator)
    return found


CONFIG: Mapping[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj", "down_proj"],
    "bias": "none",
    "lora_dropout": 0.1,
    "base_model_name_or_path": "somewhere/else",
}


def write(folder: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """An adapter's folder; a key that is `...` is left out."""
    folder.mkdir(exist_ok=True)
    own = {key: value for key, value in {**CONFIG, **config}.items() if value is not ...}
    (folder / CONFIG_NAME).write_text(json.dumps(own))
    save_file(dict(tensors_of() if tensors is None else tensors), folder / FILE_NAME)
    return folder


def read(folder: Path, base: LoadedModel, max_rank: int = 16) -> Adapter:
    return read_adapter(folder, base.model, max_rank=max_rank)


def test_an_adapter_has_its_matrices_by_linear(base: LoadedModel, tmp_path: Path) -> None:
    tensors = tensors_of()
    adapter = read(write(tmp_path / "a", tensors), base)
    assert adapter.max_rank == 4
    assert adapter.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert list(adapter.weights) == [
        f"layers.{n}.{part}" for n in range(NUM_LAYERS) for part in ("attention.qkv", "mlp.down")
    ]
    queries, values = adapter.weights["layers.1.attention.qkv"]
    assert (queries.first, queries.end, values.first, values.end) == (0, 48, 64, 80)
    assert (queries.rank, queries.scale) == (4, 2.0)
    name = FIRST.replace("layers.0", "layers.1").replace(Q, V)
    assert torch.equal(values.a, tensors[f"{name}.lora_A.weight"])
    assert torch.equal(values.b, tensors[f"{name}.lora_B.weight"])


def test_the_digest_is_of_the_content_alone(base: LoadedModel, tmp_path: Path) -> None:
    tensors = tensors_of()
    first = read(write(tmp_path / "a", tensors), base).digest
    bare = {name.removeprefix("base_model.model."): each for name, each in tensors.items()}
    named = {name.replace("lora_A", "lora_A.default"): each for name, each in tensors.items()}
    everywhere = {"lora_dropout": 0.0, "target_modules": r".*\.(q_proj|v_proj|down_proj)"}
    for number, (own, config) in enumerate(
        ((bare, {}), (named, {}), (tensors, everywhere), (tensors, {"lora_alpha": 8.0}))
    ):
        assert read(write(tmp_path / f"same{number}", own, **config), base).digest == first
    assert len(first) == 32
    changed = {name: each.clone() for name, each in tensors.items()}
    changed[f"{FIRST}.lora_B.weight"][0, 0] += 1e-6
    halves = {name: each.half() for name, each in tensors.items()}
    others = [
        read(write(tmp_path / f"other{number}", own, **config), base).digest
        for number, (own, config) in enumerate(
            (
                (changed, {}),
                (halves, {}),
                (tensors, {"lora_alpha": 4}),
                (tensors, {"use_rslora": True}),
                (tensors, {"alpha_pattern": {"layers.1.mlp.down_proj": 9}}),
            )
        )
    ]
    assert len({first, *others}) == 1 + len(others)


def test_tensors_outlive_their_file(base: LoadedModel, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    adapter = read(folder, base)
    path = folder / FILE_NAME
    path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(folder)
    assert all(part.a.isfinite().all() for own in adapter.weights.values() for part in own)
    (queries, _) = adapter.weights["layers.0.attention.qkv"]
    assert torch.equal(queries.a, tensors_of()[f"{FIRST}.lora_A.weight"])


def _without(*ends: str) -> dict[str, Tensor]:
    return {name: each for name, each in tensors_of().items() if not name.endswith(ends)}


def _with(**changes: Any) -> dict[str, Tensor]:
    """With other tensors of the first module, or others by their ends."""
    found = tensors_of()
    for end, tensor in changes.items():
        found[f"{FIRST}.{end.replace('__', '.')}"] = tensor
    return found


def _moved(old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): each for name, each in tensors_of().items()}


NAN, INF = torch.full((4, HIDDEN), float("nan")), torch.full((48, 4), float("inf"))
#: By what the refusal says: keys of the config that differ, and tensors.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Tensor] | None]] = {
    "peft_type is IA3; only LORA is served": ({"peft_type": "IA3"}, None),
    "peft_type is missing; only LORA": ({"peft_type": ...}, None),
    "use_dora asks for DoRA": ({"use_dora": True}, None),
    "use_qalora asks for QA-LoRA": ({"use_qalora": True}, None),
    "lora_bias asks for biases": ({"lora_bias": True}, None),
    "bias is 'all': adapters with biases": ({"bias": "all"}, None),
    "bias is 'lora_only': adapters with biases": ({"bias": "lora_only"}, None),
    "init_lora_weights is 'pissa'": ({"init_lora_weights": "pissa"}, None),
    "init_lora_weights is 'pissa_niter_4'": ({"init_lora_weights": "pissa_niter_4"}, None),
    "init_lora_weights is 'olora'": ({"init_lora_weights": "olora"}, None),
    "init_lora_weights is 'corda'": ({"init_lora_weights": "corda"}, None),
    "init_lora_weights is 'loftq'": ({"init_lora_weights": "loftq"}, None),
    "modules_to_save has whole modules": ({"modules_to_save": ["lm_head"]}, None),
    "alora_invocation_tokens asks for an activated": ({"alora_invocation_tokens": [1]}, None),
    "layer_replication asks for layers": ({"layer_replication": [[0, 2], [1, 2]]}, None),
    "target_parameters asks for parameters of exp": ({"target_parameters": ["a"]}, None),
    "trainable_token_indices asks for embeddings": ({"trainable_token_indices": [3]}, None),
    "the rank r must be from 1": ({"r": 0}, None),
    "the rank r must be from 1 to 65536, not 'four'": ({"r": "four"}, None),
    "the rank q_proj must be": ({"rank_pattern": {"q_proj": -1}}, None),
    "lora_alpha must be a finite number": ({"lora_alpha": None}, None),
    "lora_alpha must be a finite number, not inf": ({"lora_alpha": float("inf")}, None),
    "alpha_pattern must be an object": ({"alpha_pattern": [1]}, None),
    "target_modules names no module": ({"target_modules": []}, None),
    "target_modules must be a list of names": ({"target_modules": {"q_proj": 1}}, None),
    "layers_to_transform must be numbers": ({"layers_to_transform": ["1"]}, None),
    "is no expression": ({"target_modules": "(q_proj"}, None),
    "is too long, or repeats too much": ({"target_modules": "(a{999}){999}"}, None),
    "does not target model.layers.0.mlp.down_proj": (
        {"target_modules": ["q_proj", "v_proj"]},
        None,
    ),
    "does not target model.layers.1.mlp.down_proj": ({"layers_to_transform": [0]}, None),
    "has nothing of it": ({}, tensors_of(modules=(Q, V))),
    "lora_A.weight' has no partner: lora_B is": ({}, _without(f"0.{Q}.lora_B.weight")),
    "lora_B.weight' has no partner: lora_A is": ({}, _without(f"1.{V}.lora_A.weight")),
    "has no module model.layers.0.self_attn.qq_proj; of its layers, these take adapters: "
    "mlp.down_proj, mlp.gate_proj, mlp.up_proj, self_attn.k_proj, self_attn.o_proj": (
        {},
        _moved(Q, "self_attn.qq_proj"),
    ),
    "has no module model.layers.2.mlp.down_proj": (
        {},
        _moved(f"layers.1.{DOWN}", f"layers.2.{DOWN}"),
    ),
    "has no module transformer.h.0.attn.c_attn": (
        {},
        _moved(f"model.layers.0.{Q}", "transformer.h.0.attn.c_attn"),
    ),
    "is [4, 47], and rank 4 of this base needs [4, 48]": (
        {},
        _with(lora_A__weight=torch.ones(4, 47)),
    ),
    "is [16, 4], and rank 4 of this base needs [48, 4]": (
        {},
        _with(lora_B__weight=torch.ones(16, 4)),
    ),
    "is [4, 72], and rank 8 of this base": ({"r": 8}, None),
    "is [4, 48], and rank 2 of this base": ({"rank_pattern": {"q_proj": 2}}, None),
    "is [4], and rank 4": ({}, _with(lora_A__weight=torch.ones(4))),
    "lora_A.weight' has values that are not finite": ({}, _with(lora_A__weight=NAN)),
    "lora_B.weight' has values that are not finite": ({}, _with(lora_B__weight=INF)),
    "is of I8, not of floats": ({}, _with(lora_A__weight=torch.ones(4, HIDDEN, dtype=torch.int8))),
    "is a magnitude of DoRA": ({}, _with(lora_magnitude_vector=torch.ones(48))),
    "is a vector of IA3": ({}, _with(ia3_l=torch.ones(48))),
    "is a bias of a matrix": ({}, _with(lora_B__bias=torch.ones(48))),
    "is a whole weight of the base": ({}, _with(base_layer__weight=torch.ones(48, 48))),
    "is a matrix for an embedding": (
        {},
        {
            **tensors_of(),
            "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 300),
        },
    ),
    "is no matrix of a LoRA": (
        {},
        {**tensors_of(), "base_model.model.lm_head.weight": torch.ones(300, 48)},
    ),
    "are of one module": ({}, _with(lora_A__other__weight=torch.ones(4, HIDDEN))),
    "lm_head is the output head, which takes no": (
        {},
        {
            **tensors_of(),
            "base_model.model.lm_head.lora_A.weight": torch.ones(4, 48),
            "base_model.model.lm_head.lora_B.weight": torch.ones(300, 4),
        },
    ),
    "has no tensors": ({}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(
    message: str, base: LoadedModel, tmp_path: Path
) -> None:
    config, tensors = REFUSED[message]
    folder = write(tmp_path / "a", tensors, **config)
    with pytest.raises(AdapterError) as caught:
        read(folder, base)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert (http_status(caught.value), caught.value.param) == (400, "lora_path")


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def _no_tensors(folder: Path) -> None:
    (folder / FILE_NAME).unlink()


def _pickled(folder: Path) -> None:
    (folder / FILE_NAME).rename(folder / "adapter_model.bin")


def _truncated(folder: Path) -> None:
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes()[:-10])


def _no_json(folder: Path) -> None:
    (folder / CONFIG_NAME).write_text('{"peft_type": ')


def _list(folder: Path) -> None:
    (folder / CONFIG_NAME).write_text("[]")


DAMAGED: dict[str, Callable[[Path], None]] = {
    "cannot read": _no_folder,
    f"has no {FILE_NAME}": _no_tensors,
    "adapter_model.bin is a pickle, which can run code": _pickled,
    "is damaged or truncated": _truncated,
    "is not valid JSON": _no_json,
    "holds a list, not an object": _list,
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_damaged_folder_is_refused(message: str, base: LoadedModel, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    DAMAGED[message](folder)
    with pytest.raises(InvalidRequestError) as caught:
        read(folder, base)
    assert message in str(caught.value)
    assert type(caught.value) is AdapterError


def test_the_limit_of_ranks_counts_for_every_module(base: LoadedModel, tmp_path: Path) -> None:
    rank_of_one = {"rank_pattern": {r"layers\.1\.mlp\.down_proj": 9}}
    tensors = tensors_of()
    name = f"base_model.model.model.layers.1.{DOWN}"
    tensors[f"{name}.lora_A.weight"] = torch.ones(9, INNER)
    tensors[f"{name}.lora_B.weight"] = torch.ones(HIDDEN, 9)
    folder = write(tmp_path / "a", tensors, **rank_of_one)
    assert read(folder, base, max_rank=9).max_rank == 9
    with pytest.raises(AdapterError, match=rf"the rank of {name[17:]} is 9, over the limit of 8"):
        read(folder, base, max_rank=8)


def test_an_adapter_of_another_base_is_refused(base: LoadedModel, tmp_path: Path) -> None:
    other = base_of(tmp_path / "base", hidden_size=96)
    with pytest.raises(AdapterError, match=r"\[48, 4\], and rank 4 of this base needs \[96, 4\]"):
        read(write(tmp_path / "a"), other)


def test_experts_and_routers_take_none(tmp_path: Path) -> None:
    extra = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    other = base_of(tmp_path / "base", architecture="qwen3_moe", extra=extra)
    for module, what in (
        ("mlp.experts.0.gate_proj", "a matrix of experts"),
        ("mlp.gate", "the router of experts"),
    ):
        name = f"base_model.model.model.layers.0.{module}"
        pair = {
            f"{name}.lora_A.weight": torch.ones(4, 48),
            f"{name}.lora_B.weight": torch.ones(4, 4),
        }
        folder = write(tmp_path / "a", pair, target_modules=[module])
        others = "these do: self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, self_attn.v_proj"
        with pytest.raises(AdapterError, match=f"is {what}, which takes no adapter.*{others}$"):
            read(folder, other)
