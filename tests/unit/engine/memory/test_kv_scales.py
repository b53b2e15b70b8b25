"""Keys and values with a checkpoint's own scales: tokens are those of the format's library."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.errors import ConfigError, ModelLoadError
from shared.model.loader import load_model
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.kv_scales import kv_config, own_name, rounded_logits, write_kv_scales
from tests.fakes.checkpoints.latent import LATENT
from tests.fakes.engine.engines import cached_hashes, drain, make_engine, make_request
from tests.fakes.families.cases import CASES
from tests.fakes.model.transformers_models import random_model, random_prompt, save
from tests.unit.model.checkpoints import edit_json, edit_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import transformers

    from shared.engine.engine import Engine
    from shared.model.loaded import LoadedModel

#: With heads of 80, 6 over 2; in groups, with windows; with layers that have states instead.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "gemma3": CASES["gemma3"],
    "qwen3_5": CASES["qwen3_5"],
}
PROMPTS = {f"{n}": random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30, 47)}
NUM_TOKENS = 10
#: By name, and what counts that it was done.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "generation_tokens"),
    "short steps": ({"max_num_batched_tokens": 11}, "generation_tokens"),
    "odd blocks": ({"block_size": 5}, "generation_tokens"),
    "offload": (
        {"num_blocks": 24, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    "draft": (
        {
            "speculative_config": {
                "method": "draft_model",
                "num_speculative_tokens": 3,
                "adaptive": False,
            }
        },
        "spec_decode_num_draft_tokens",
    ),
}

Stored = "Callable[[str, str, bool], tuple[Path, Path]]"
Chosen = "Callable[[Path, Path, str, tuple[int, ...]], list[int]]"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """By family, kind and whether by head: a checkpoint without scales, and one with them."""

    @functools.cache
    def plain(family: str) -> Path:
        model_type, settings = FAMILIES[family]
        return save(random_model(model_type, seed=3, **settings), tmp_path_factory.mktemp(family))

    @functools.cache
    def make(family: str, kind: str, by_head: bool) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("stored")
        return plain(family), write_kv_scales(plain(family), folder, kind, by_head=by_head)

    return make


@pytest.fixture(scope="module")
def chosen() -> Chosen:
    """The library's choice for each token of an answer; most answers are asked about often."""

    @functools.cache
    def oracle(plain: Path) -> transformers.PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)

    @functools.cache
    def choose(plain: Path, checkpoint: Path, prompt: str, answer: tuple[int, ...]) -> list[int]:
        logits = rounded_logits(oracle(plain), checkpoint, PROMPTS[prompt], list(answer))
        return logits.argmax(dim=-1).tolist()

    return choose


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer, which keeps less of a token than its target does in 8 bits."""
    small = random_model("qwen3", num_hidden_layers=1, num_key_value_heads=1, head_dim=32)
    return save(small, tmp_path_factory.mktemp("draft"))


def answers(engine: Engine, counter: str) -> dict[str, list[int]]:
    """All prompts together, twice, so that there are hits."""
    found: dict[str, list[int]] = {}
    try:
        for turn in ("first", "second"):
            for name, prompt in PROMPTS.items():
                engine.add(
                    make_request(f"{turn} {name}", prompt, max_tokens=NUM_TOKENS, ignore_eos=True)
                )
            done = drain(engine)
            engine.check_integrity()
            found |= {f"{turn} {name}": done.tokens(f"{turn} {name}") for name in PROMPTS}
        assert engine.stats().counters[counter]
    finally:
        engine.close()
    return found


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize(
    ("family", "kind", "by_head", "name"),
    [
        *(("qwen3", kind, by_head, "usual") for kind in ("int8", "fp8") for by_head in (0, 1)),
        *(("qwen3", "fp8", True, name) for name in SETTINGS if name != "usual"),
        ("gemma3", "int8", True, "short steps"),
        ("gemma3", "fp8", False, "offload"),
        ("qwen3_5", "fp8", True, "short steps"),
    ],
)
def test_tokens_are_those_of_the_library(
    family: str,
    kind: str,
    by_head: bool,
    name: str,
    executor: str,
    stored: Stored,
    chosen: Chosen,
    draft: Path,
) -> None:
    plain, checkpoint = stored(family, kind, bool(by_head))
    settings, counter = SETTINGS[name]
    if "speculative_config" in settings:
        own = {**settings["speculative_config"], "model": str(draft)}
        settings = {"speculative_config": json.dumps(own)}
    loaded = load_model(checkpoint, attention_backend=executor, dtype="float32")
    engine = make_engine(loaded, **{"num_blocks": 96, "block_size": 16} | settings)
    assert engine.layout.dtype == {"int8": "int8", "fp8": "float8_e4m3fn"}[kind]
    assert engine.layout.scales
    found = answers(engine, counter)
    for request, answer in found.items():
        assert answer == chosen(plain, checkpoint, request.split()[1], tuple(answer))


@pytest.mark.parametrize(
    ("family", "kind", "by_head"), [("qwen3", "int8", 1), ("gemma3", "fp8", 0)]
)
def test_modules_of_transformers_keep_them_so(
    family: str, kind: str, by_head: int, stored: Stored, chosen: Chosen
) -> None:
    """Windows, too; the digest is that of the same model with a description."""
    plain, checkpoint = stored(family, kind, bool(by_head))
    engines = [
        make_engine(
            load_model(checkpoint, model_impl=impl, attention_backend=backend, dtype="float32"),
            num_blocks=96,
            block_size=16,
        )
        for impl, backend in (("transformers", "auto"), ("auto", "torch"))
    ]
    ours, families = (engine.layout.scales for engine in engines)
    assert ours == families != ""
    found, _ = (answers(engine, "generation_tokens") for engine in engines)
    for request, answer in found.items():
        assert answer == chosen(plain, checkpoint, request.split()[1], tuple(answer))


def test_a_block_has_no_scales(stored: Stored) -> None:
    """A byte for each number, and any size of blocks."""
    loaded = load_model(stored("qwen3", "fp8", False)[1], attention_backend="torch")
    engine = make_engine(loaded, block_size=3)
    (group,) = engine.layout.groups
    assert engine.layout.block_bytes == 2 * group.num_layers * group.num_kv_heads * 3 * 80
    engine.close()


@pytest.fixture(scope="module")
def loaded(stored: Stored) -> dict[str, LoadedModel]:
    """With scales, with others, and the same without."""
    folder = stored("qwen3", "fp8", False)[1]
    other = write_kv_scales(stored("qwen3", "fp8", True)[0], folder.parent / "other", "fp8")
    edit_tensors(
        other / "model.safetensors", lambda tensors: tensors[own_name(1, "v")].mul_(1.0625)
    )
    models = {"stored": folder, "other": other, "plain": stored("qwen3", "fp8", False)[0]}
    return {name: load_model(path, attention_backend="torch") for name, path in models.items()}


FORMATS = {
    ("stored", "auto"): "float8_e4m3fn",
    ("stored", "checkpoint"): "float8_e4m3fn",
    ("stored", "float32"): "float32",
    ("stored", "fp8"): "float8_e4m3fn",
    ("stored", "int8"): "int8",
    ("other", "auto"): "float8_e4m3fn",
    ("plain", "auto"): "float32",
    ("plain", "float32"): "float32",
}


def test_each_format_has_blocks_of_its_own(loaded: dict[str, LoadedModel]) -> None:
    """The same text under two formats shares no block."""
    prompt = random_prompt(64, vocab_size=321, seed=1)
    hashes = {}
    for (model, name), dtype in FORMATS.items():
        engine = make_engine(loaded[model], kv_cache_dtype=name)
        assert engine.layout.dtype == dtype
        assert bool(engine.layout.scales) == (name in ("auto", "checkpoint") and model != "plain")
        engine.add(make_request("a", prompt, max_tokens=2, ignore_eos=True))
        drain(engine)
        hashes[model, name] = frozenset(cached_hashes(engine))
        assert len(hashes[model, name]) == 16
        engine.close()
    assert hashes["stored", "auto"] == hashes["stored", "checkpoint"]
    assert hashes["plain", "auto"] == hashes["plain", "float32"]
    del hashes["stored", "checkpoint"], hashes["plain", "float32"]
    assert len(frozenset().union(*hashes.values())) == 16 * len(hashes)


@pytest.mark.parametrize(
    ("model", "name", "says"),
    [
        ("plain", "checkpoint", "the checkpoint has no scales for keys and values"),
        ("stored", "bfloat16", r"keys and values of a torch\.float32 model are kept as that, or"),
    ],
)
def test_what_a_model_has_not_is_refused(
    model: str, name: str, says: str, loaded: dict[str, LoadedModel]
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_engine(loaded[model], kv_cache_dtype=name)


def test_a_wrong_scale_matters_to_those_who_use_it(stored: Stored, tmp_path: Path) -> None:
    checkpoint = write_kv_scales(stored("qwen3", "fp8", False)[0], tmp_path, "fp8")
    edit_tensors(
        checkpoint / "model.safetensors", lambda tensors: tensors[own_name(0, "k")].zero_()
    )
    model = load_model(checkpoint, attention_backend="torch")
    says = r"k_scale' must be positive and finite.*; --kv-cache-dtype float32, int8 or fp8 does"
    with pytest.raises(ModelLoadError, match=says):
        make_engine(model)
    make_engine(model, kv_cache_dtype="fp8").close()


def test_rows_of_latent_attention_are_refused_by_name(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, LATENT)
    layers = range(LATENT.num_layers)
    scales = {own_name(layer, letter): torch.ones(1) for layer in layers for letter in "kv"}
    edit_tensors(tmp_path / "model.safetensors", lambda tensors: tensors.update(scales))
    edit_json(tmp_path / "config.json", quantization_config=kv_config("fp8", by_head=False))
    model = load_model(tmp_path, attention_backend="torch")
    with pytest.raises(ModelLoadError, match="kv_cache_scheme: rows of latent attention are not"):
        make_engine(model)
    make_engine(model, kv_cache_dtype="int8").close()
