"""Models that transformers' modules compute over our paged KV, and those that they cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError, ModelLoadError
from shared.model.checks import check_model
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.generic.model import TransformersCausalLM
from shared.model.loader import load_model
from tests.fakes.engine.engines import make_engine
from tests.fakes.families.cases import CASES as FAMILY_CASES
from tests.fakes.families.cases import FULL, SLIDING, WINDOW
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save
from tests.unit.model.checkpoints import edit_json
from tests.unit.model.families.test_families import SEEDS

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_SIZE, CHUNK = 8, 13
_EXPERTS = {"num_local_experts": 7, "num_experts_per_tok": 2, "intermediate_size": 40}
#: Of no family.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "apertus": ("apertus", {"head_dim": ...}),
    "phimoe": ("phimoe", {"head_dim": ..., **_EXPERTS}),
    # Its mask alone says its window.
    "phimoe-window": ("phimoe", {"head_dim": ..., **_EXPERTS, "sliding_window": WINDOW}),
    "nemotron": ("nemotron", {}),
    "gemma3n": (
        "gemma3n_text",
        {
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 20,
            "vocab_size_per_layer_input": 330,
            "laurel_rank": 12,
        },
    ),
}
#: And families, by their modules: windows, caps, sinks, learned positions, multipliers, heads whose
#: values are narrower than keys.
FORCED = (
    "gemma2-caps",
    "gemma3",
    "gpt_oss",
    "gpt2",
    "granite",
    "cohere2",
    "qwen2_moe",
    "deepseek_v3",
    "gemma4-shared",
)
CASES = OTHERS | {name: FAMILY_CASES[name] for name in FORCED}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def llama(path: Path) -> Path:
    return save(random_model("llama", seed=1), path)


def answers(path: Path, **settings: Any) -> list[list[int]]:
    loaded = load_model(path, model_impl="transformers", **settings)
    driver = PagedDriver(loaded.model, block_size=BLOCK_SIZE, chunk=CHUNK)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 35)]
    return driver.generate(prompts, 12)[0]


@pytest.mark.parametrize("case", CASES)
def test_greedy_answers_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    model_type, settings = CASES[case]
    theirs = random_model(model_type, **settings)
    path = save(theirs, tmp_path)
    impl = "auto" if case in OTHERS else "transformers"
    loaded = load_model(path, model_impl=impl)
    assert isinstance(loaded.model, TransformersCausalLM)
    driver = PagedDriver(loaded.model, block_size=BLOCK_SIZE, chunk=CHUNK)
    lengths = (1, BLOCK_SIZE + 1, WINDOW, 2 * CHUNK + 9)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in lengths]
    for prompt, answer, ours in zip(prompts, *driver.generate(prompts, 12), strict=True):
        expected = logits_after(theirs, prompt, answer)
        assert answer == expected.argmax(dim=-1).tolist()
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=5e-4)


def test_windows_are_groups_of_their_own(tmp_path: Path) -> None:
    model_type, settings = FAMILY_CASES["gemma3"]
    path = save(random_model(model_type, **settings), tmp_path)
    specs = [load_model(path, model_impl=impl).spec for impl in ("transformers", "torch")]
    assert specs[0].kv_groups == specs[1].kv_groups
    assert specs[0].windows == specs[1].windows


def test_layers_that_share_keys_and_values_are_in_no_group(tmp_path: Path) -> None:
    for case, wanted in (("gemma3n", ((1,), (0,), (2,))), ("gemma4-shared", None)):
        model_type, settings = CASES[case]
        path = save(random_model(model_type, **settings), tmp_path / case)
        spec = load_model(path, model_impl="transformers").spec
        assert spec.kv_groups == (wanted or load_model(path, model_impl="torch").spec.kv_groups)
        assert spec.shares_kv


def test_linears_take_the_wanted_format(tmp_path: Path) -> None:
    path = llama(tmp_path)
    exact = load_model(path, model_impl="transformers")
    for name in ("int8", "fp8", "int4"):
        narrow = load_model(path, model_impl="transformers", quantization=name)
        assert narrow.num_weight_bytes < 0.7 * exact.num_weight_bytes
        assert narrow.fingerprint != exact.fingerprint
        assert len(answers(path, quantization=name)) == 3


def test_its_blocks_are_not_those_of_the_family(tmp_path: Path) -> None:
    path = llama(tmp_path)
    one, other = (load_model(path, model_impl=impl) for impl in ("transformers", "torch"))
    assert one.fingerprint != other.fingerprint


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    model_type, settings = OTHERS["apertus"]
    path = save(random_model(model_type, **settings), tmp_path)
    (path / "model.safetensors").unlink()
    first, again, other = (load_model(path, load_format="dummy", seed=s) for s in (1, 1, 2))
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("bloom", {"n_head": 6, "n_layer": 2}, "does not let others compute its attention"),
        ("doge", {"head_dim": ...}, "layer 0 has a mask of its own"),
        ("roberta", {"is_decoder": True, "pad_token_id": 1}, "does not count positions from 0 on"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_cannot_run_over_paged_kv_is_refused(
    model_type: str, settings: dict[str, Any], message: str, dtype: str, tmp_path: Path
) -> None:
    path = save(random_model(model_type, **settings), tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        load_model(path, dtype=dtype)


@pytest.mark.parametrize(
    ("case", "quantization"),
    [("deepseek_v3", "none"), ("dots1", "none"), ("dots1", "int8"), ("minimax_m2", "int8")],
)
def test_experts_that_rounding_changes_are_no_reason_to_refuse(
    case: str, quantization: str, tmp_path: Path
) -> None:
    model_type, settings = FAMILY_CASES[case]
    path = save(random_model(model_type, seed=SEEDS.get(case, 0), **settings), tmp_path)
    own = {"dtype": "bfloat16", "quantization": quantization}
    assert isinstance(
        load_model(path, model_impl="transformers", **own).model, TransformersCausalLM
    )


MODELING = '''
from transformers import LlamaConfig, LlamaForCausalLM
from torch import nn


class MineConfig(LlamaConfig):
    model_type = "mine"


class Shifting(nn.Module):
    """Adds a part of the token before, which no keys and values keep."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        out = self.inner(x)
        out[:, 1:] += 0.5 * x[:, :-1]
        return out


class Mine(LlamaForCausalLM):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        if config.shifts:
            for layer in self.model.layers:
                layer.mlp = Shifting(layer.mlp)
'''


def mine(path: Path, *, shifts: bool) -> Path:
    """A model whose code is in its directory."""
    save(random_model("llama", seed=1), path)
    (path / "mine.py").write_text(MODELING)
    edit_json(
        path / "config.json",
        model_type="mine",
        architectures=["Mine"],
        auto_map={"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.Mine"},
        shifts=shifts,
    )
    if shifts:
        tensors = load_file(path / "model.safetensors")
        renamed = {name.replace(".mlp.", ".mlp.inner."): each for name, each in tensors.items()}
        save_file(renamed, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_code_of_the_model_s_directory_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    path = mine(tmp_path / "mine", shifts=False)
    with pytest.raises(
        ModelLoadError, match="Python code of its own, which --trust-remote-code runs"
    ):
        check_model(path)
    expected = answers(llama(tmp_path / "llama"))
    assert answers(path, trust_remote_code=True) == expected


def test_states_between_steps_are_found(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="keeps more between steps than keys and values"):
        load_model(mine(tmp_path, shifts=True), trust_remote_code=True)


def test_a_draft_that_reads_the_layers_is_refused(tmp_path: Path) -> None:
    target, head = llama(tmp_path / "target"), tmp_path / "head"
    write_random_head(head, target, HeadSpec(method="eagle3"))
    edit_json(head / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    loaded = load_model(target, model_impl="transformers")
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="which TransformersCausalLM does not give"):
        make_engine(loaded, speculative_config=json.dumps(speculation))


def test_a_missing_and_a_surplus_tensor_are_named(tmp_path: Path) -> None:
    path = llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors["model.layers.1.extra.weight"] = tensors.pop(name).clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=rf"'{name}' is missing"):
        load_model(path, model_impl="transformers")
    tensors[name] = tensors["model.layers.1.extra.weight"].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"extra.weight' is unexpected"):
        load_model(path, model_impl="transformers")


def test_settings_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    path = llama(tmp_path)
    for impl, backend in (("transformers", "native"), ("torch", "native"), ("native", "torch")):
        with pytest.raises(ConfigError, match=f"{impl} and --attention-backend {backend}"):
            check_model(path, model_impl=impl, attention_backend=backend)
    with pytest.raises(ConfigError, match="model impl 'vllm' is unknown"):
        check_model(path, model_impl="vllm")
    raw = json.loads((path / "config.json").read_text())
    edit_json(path / "config.json", architectures=["Unheard"], model_type="unheard")
    assert raw["model_type"] == "llama"
    with pytest.raises(
        ModelLoadError,
        match=r"`unheard`.*transformers cannot run it.*families: .*gemma2.*qwen3_moe",
    ):
        check_model(path)
    with pytest.raises(
        ModelLoadError,
        match=r"Unheard is not supported; families: .*nor can --model-impl transformers",
    ):
        check_model(path, model_impl="native")
