"""Every family answers like transformers, token for token, from both spellings of its config."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.config import load_spec, parse_spec
from shared.model.checkpoint.files.tensor_files import stored_tensors
from shared.model.families.registry import FAMILIES
from shared.model.loader import load_model
from tests.fakes.families.cases import CASES, FULL, SLIDING, WINDOW
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Callable

    import transformers

    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.native.model import NativeCausalLM

PAGE = Path(__file__).parents[4] / "docs" / "models.md"
BLOCK_SIZE, CHUNK, NUM_TOKENS = 8, 13, 9
#: One token, around a block and a window, and three chunks, which are three windows.
PROMPT_LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE + 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * CHUNK + 9)
#: Seeds of the weights for which no choice is a close one; 0 where not named.
SEEDS: dict[str, int] = {"qwen3_next": 4, "qwen3_5": 1, "qwen3_5_moe": 1}
#: How far logits may be off. These are as far from double precision in transformers, too.
ATOL = {"gemma4-shared": 2e-3}
#: What the native kernels do not compute, and a part of what they say.
NOT_NATIVE = {
    "opt-350m": "do not know norms of sums, the lack of a last norm, the projection",
    "nemotron_h-latent-experts": "do not know experts that read projected rows",
}
RUNS = [(case, "torch") for case in CASES] + [
    (case, "native") for case in CASES if case not in NOT_NATIVE
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def oracle(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[transformers.PreTrainedModel, Path]]:
    """A random model of each case, and its checkpoint."""

    @functools.cache
    def make(case: str) -> tuple[transformers.PreTrainedModel, Path]:
        model_type, settings = CASES[case]
        model = random_model(model_type, seed=SEEDS.get(case, 0), **settings)
        return model, save(model, tmp_path_factory.mktemp(case))

    return make


@pytest.fixture(scope="module")
def logits_of(
    oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
) -> Callable[[str, tuple[int, ...], tuple[int, ...]], torch.Tensor]:
    """See `logits_after`; asked once for each answer, since both executors give the same ones."""

    @functools.cache
    def ask(case: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
        return logits_after(oracle(case)[0], prompt, answer)

    return ask


@pytest.fixture(scope="module")
def on_torch(
    oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
) -> Callable[[str], CausalLM | NativeCausalLM]:
    """Our model of each case, loaded once."""
    return functools.cache(
        lambda case: load_model(oracle(case)[1], attention_backend="torch").model
    )


@pytest.mark.parametrize(("case", "backend"), RUNS)
def test_greedy_answers_equal_those_of_transformers(
    case: str,
    backend: str,
    oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
    on_torch: Callable[[str], CausalLM | NativeCausalLM],
    logits_of: Callable[[str, tuple[int, ...], tuple[int, ...]], torch.Tensor],
) -> None:
    if backend == "torch":
        model = on_torch(case)
    else:
        model = load_model(oracle(case)[1], attention_backend=backend).model
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in PROMPT_LENGTHS]
    driver = PagedDriver(model, block_size=BLOCK_SIZE, chunk=CHUNK)
    answers, logits = driver.generate(prompts, NUM_TOKENS)
    for prompt, answer, ours in zip(prompts, answers, logits, strict=True):
        theirs = logits_of(case, tuple(prompt), tuple(answer))
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=ATOL.get(case, 5e-4))
        # The order of additions decides nothing.
        best = theirs.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 4 * (ours - theirs).abs().max()


@pytest.mark.parametrize("case", CASES)
def test_wanted_tokens_alone_have_the_logits_that_they_have_beside_all(
    case: str, on_torch: Callable[[str], CausalLM | NativeCausalLM]
) -> None:
    driver = PagedDriver(on_torch(case), block_size=BLOCK_SIZE, chunk=CHUNK)
    tokens = random_prompt(2 * WINDOW + 5, vocab_size=321, seed=3)
    wanted = [2, WINDOW, len(tokens) - 2, len(tokens) - 1]
    found, every = driver.score(tokens, wanted=wanted), driver.score(tokens)
    torch.testing.assert_close(found, every[wanted], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_the_hub_s_spelling_of_a_config_means_the_same(
    case: str, oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]]
) -> None:
    _, checkpoint = oracle(case)
    raw = json.loads((checkpoint / "config.json").read_text())
    assert parse_spec(as_on_the_hub(raw)) == load_spec(checkpoint)


def as_on_the_hub(raw: dict[str, Any]) -> dict[str, Any]:
    """A config of transformers 5 as transformers 4 wrote it."""
    raw = dict(raw)
    raw["torch_dtype"] = raw.pop("dtype")
    if raw["model_type"] == "gemma4_text":
        full = raw.pop("per_layer_config")[str(raw["num_hidden_layers"] - 1)]
        raw["global_head_dim"] = full["head_dim"]
        raw["num_global_key_value_heads"] = full.get("num_key_value_heads")
        return raw
    if raw["model_type"] == "lfm3":  # younger than transformers 4
        return raw
    ropes = raw.pop("rope_parameters", None)
    if ropes is None:
        return raw
    if SLIDING in ropes:
        raw["rope_local_base_freq"] = ropes[SLIDING]["rope_theta"]
        ropes = ropes[FULL]
    raw["rope_theta"] = ropes.pop("rope_theta")
    if "partial_rotary_factor" in ropes:
        raw["partial_rotary_factor"] = ropes.pop("partial_rotary_factor")
    if ropes["rope_type"] != "default":
        raw["rope_scaling"] = {"type": ropes.pop("rope_type"), **ropes}
    if raw["model_type"] == "gpt_neox":
        raw["rotary_pct"] = raw.pop("partial_rotary_factor")
        raw["rotary_emb_base"] = raw.pop("rope_theta")
    return raw


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [("gpt2", "transformer.", ""), ("opt", "model.decoder.", "decoder.")],
)
def test_names_of_older_files_are_known(
    case: str,
    old: str,
    new: str,
    oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
    tmp_path: Path,
) -> None:
    from safetensors.torch import save_file

    _, checkpoint = oracle(case)
    shards = list(checkpoint.glob("*.safetensors"))
    tensors = {name: tensor for _, name, tensor in stored_tensors(shards)}
    renamed = {new + name.removeprefix(old): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    prompt = random_prompt(9, vocab_size=321, seed=1)
    answers = [
        PagedDriver(load_model(folder).model, block_size=8, chunk=13).generate([prompt], 8)[0]
        for folder in (checkpoint, tmp_path)
    ]
    assert answers[0] == answers[1]


def test_the_page_of_models_names_every_family() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = [name.strip("`") for row in rows[1:] for name in row.split("|")[1].split()]
    assert sorted(named) == sorted(family.model_type for family in FAMILIES.values())


def test_every_family_is_among_the_cases() -> None:
    types = {model_type for model_type, _ in CASES.values()}
    others = {"llama", "mistral", "qwen2", "qwen3"}  # in test_llama.py
    assert {family.model_type for family in FAMILIES.values()} == types | others


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("falcon-7b", {"alibi": True}, "alibi"),
        ("gemma3", {"use_bidirectional_attention": True}, "no decoder"),
        ("gemma3", {"layer_types": [FULL]}, "layer_types has 1 entries for 3 layers"),
        ("gemma3", {"sliding_window": 0}, "sliding_window must be at least 1, not 0"),
        ("gemma3", {"layer_types": [FULL, "chunked_attention", FULL]}, "'chunked_attention'"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "no decoder"),
        ("gemma4", {"num_kv_shared_layers": 3}, "layer 1 has no layer of type full_attention in"),
        ("gemma4", {"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4 of 4 layers"),
        ("gemma4", {"per_layer_config": {"1": {"hidden_size": 8}}}, "layer 1 has 'hidden_size'"),
        ("gemma4", {"per_layer_config": {"3": {"head_dim": 5}}}, "layer 3 has 6 heads of 5"),
        ("gemma4-shared", {"vocab_size_per_layer_input": 320}, "is 320, but vocab_size is 321"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 2 layers"),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.2}}, "3 numbers of a head"),
        ("opt", {"activation_function": "mish"}, "activation_function 'mish'"),
        ("phi3-partial-window", {"sliding_window": 0}, "sliding_window must be at least 1, not 0"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv behind norms"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit must be 7.0, not 5.0"),
        ("mixtral", {"num_experts_per_tok": 8}, "num_experts_per_tok is 8, but num_local_experts"),
        ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ("glm4_moe", {"n_group": 4}, "n_group is 4, but n_routed_experts is 6"),
        ("glm4_moe", {"topk_group": 1}, "topk_group is 1 of 3 groups, for 3 experts"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc'"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func must be 'sigmoid'"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq must be 1, not 2"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank must be from 1 to 65536, not 0"),
        ("deepseek_v3", {"qk_rope_head_dim": 5}, "head_dim 5 is odd"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "for 1 of 3 layers"),
        ("nemotron_h", {"layers_block_type": ["moe"]}, "layer 0 is a feed-forward that follows no"),
        ("lfm3", {"layer_types": ["conv", "mamba", "conv", "conv"]}, "layer_types has 'mamba'"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers has 1 entries, not 5"),
        ("falcon_h1", {"mamba_proj_bias": True}, "mamba_proj_bias and projectors_bias differ"),
        ("falcon_h1", {"mamba_d_ssm": 96}, "8 heads of 24 in 2 groups do not make up 96"),
        ("falcon_h1-biased", {"ssm_in_multiplier": 2.0}, "mamba_proj_bias with ssm_in_mul"),
        ("falcon_h1-biased", {"attention_in_multiplier": 2.0}, "attention_bias with attention_in"),
        ("nemotron_h-experts", {"moe_latent_size": 0}, "hidden_size must be at least 1, not 0"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(
    case: str,
    changes: dict[str, Any],
    message: str,
    oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]],
) -> None:
    raw = json.loads((oracle(case)[1] / "config.json").read_text())
    with pytest.raises(ModelLoadError, match=message):
        parse_spec({**raw, **changes})


@pytest.mark.parametrize("case", NOT_NATIVE)
def test_the_native_kernels_refuse_by_name(
    case: str, oracle: Callable[[str], tuple[transformers.PreTrainedModel, Path]]
) -> None:
    with pytest.raises(ConfigError, match=NOT_NATIVE[case]):
        load_model(oracle(case)[1], attention_backend="native")
