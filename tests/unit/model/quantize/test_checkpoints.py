"""A written checkpoint loads, and answers as the dense model of its weights."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError, ModelLoadError
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from shared.model.quantize.output import KvCache
from shared.model.quantize.quark import QuarkOutput
from shared.model.quantize.running import Calibration
from shared.model.quantize.scheme import SCHEMES
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import (
    ODD_SIZES,
    logits_after,
    random_model,
    random_prompt,
    save,
)
from tests.fakes.stored.compressed import INT4, Compressed
from tests.unit.model.checkpoints import edit_json, edit_tensors, write
from tests.unit.model.quantize.making import make

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

GROUP = 4
LIBRARY = Compressed("pack-quantized", {**INT4, "group_size": GROUP}, scale_dtype=torch.float32)
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
NUM_TOKENS = 12
#: Projections apart and fused, turned weights, experts apart and stacked, latent attention, inputs
#: of layers, states.
FAMILIES = [
    "gemma4-shared",
    "phi3",
    "gpt2",
    "mixtral",
    "gpt_oss",
    "llama4",
    "deepseek_v3",
    "qwen3_5",
]
#: What the names of weights have that stay as they are; kv_b_proj is no product of its own.
ALONE = (
    *("embed", "lm_head", "wte", "wpe", "router", ".gate.weight", "_norm.", "conv.conv", "conv1d"),
    *("kv_b_proj", "per_layer_model_projection", "project_in", "project_out", "expert_gate"),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny(case: str, folder: Path, **more: Any) -> Path:
    model_type, settings = CASES.get(case, (case, {}))
    return save(random_model(model_type, seed=3, **settings, **more), folder)


def dense_of(name: str, tensor: Tensor, *, is_turned: bool) -> Tensor:
    """What the library makes of a weight, or of each expert's."""
    if tensor.ndim == 3:
        return torch.stack([dense_of(name, own, is_turned=is_turned) for own in tensor])
    dense = LIBRARY.write(tensor.T if is_turned else tensor).dense
    return dense.T.contiguous() if is_turned else dense


def dense_checkpoint(source: Path, out: Path, case: str) -> Path:
    """The checkpoint that the quantised one means."""
    tensors = load_file(source / "model.safetensors")
    dense = {}
    for name, tensor in tensors.items():
        is_stack = ".experts." in name and tensor.ndim == 3
        is_linear = is_stack or (tensor.ndim == 2 and name.endswith(".weight"))
        if is_linear and not any(each in name for each in ALONE):
            is_turned = is_stack or CASES.get(case, (case,))[0] == "gpt2"
            tensor = dense_of(name, tensor, is_turned=is_turned)
        dense[name] = tensor
    out.mkdir()
    save_file(dense, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", out)
    return out


def parameters(folder: Path) -> list[Tensor]:
    model = load_model(folder, attention_backend="torch").model
    assert isinstance(model, CausalLM)
    return list(model.parameters())


@pytest.mark.parametrize("case", FAMILIES)
def test_weights_are_those_that_the_library_means(case: str, tmp_path: Path) -> None:
    source = tiny(case, tmp_path / "source")
    units = make(source, tmp_path / "out", group=GROUP)
    expected = parameters(dense_checkpoint(source, tmp_path / "dense", case))
    ours = parameters(tmp_path / "out")
    for mine, theirs in zip(ours, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert not all(map(torch.equal, ours, parameters(source)))
    assert len(units) == len(list((tmp_path / "out").glob("*.safetensors")))


def test_of_a_model_of_images_the_decoder_is_quantised(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.AutoConfig.for_model(
        "llava",
        text_config={"model_type": "llama", **ODD_SIZES},
        vision_config={**sizes, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
    )
    source = tmp_path / "source"
    save(transformers.AutoModelForImageTextToText.from_config(config), source)
    units = make(source, tmp_path / "out", group=GROUP, calibration=texts(9))
    modules = [own.module for unit in units for own in unit.matrices]
    assert len(modules) == 2 * 7
    assert not any("vision" in module for module in modules)
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert any("vision" in module for module in raw["quantization_config"]["ignore"])
    make(source, tmp_path / "plain", group=GROUP)
    expected = parameters(dense_checkpoint(source, tmp_path / "dense", "llama"))
    for mine, theirs in zip(parameters(tmp_path / "plain"), expected, strict=True):
        assert torch.equal(mine, theirs)
    assert len(parameters(tmp_path / "out")) == len(expected)


def test_answers_are_those_of_the_dense_model(tmp_path: Path) -> None:
    source = tiny("mixtral", tmp_path / "source")
    make(source, tmp_path / "out", group=GROUP)
    dense = dense_checkpoint(source, tmp_path / "dense", "mixtral")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    model = load_model(tmp_path / "out", attention_backend="torch").model
    answers, _ = PagedDriver(model, block_size=8, chunk=13).generate(PROMPTS, NUM_TOKENS)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer == logits_after(oracle, prompt, answer).argmax(dim=-1).tolist()


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8", "fp8"])
def test_transformers_reads_the_same_with_the_library(scheme: str, tmp_path: Path) -> None:
    source = tiny("qwen2", tmp_path / "source")
    group = 32 if SCHEMES[scheme].has_free_group else None
    make(source, tmp_path / "out", scheme, group=group, others=[("*down_proj", SCHEMES["w8a8"])])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    ).eval()
    ours = load_model(tmp_path / "out", attention_backend="torch").model
    driver = PagedDriver(ours, block_size=8, chunk=64)
    for prompt in PROMPTS:
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
        torch.testing.assert_close(driver.score(prompt), expected, rtol=1e-3, atol=1e-3)


def test_files_beside_the_weights_come_along(tmp_path: Path) -> None:
    source = write(tmp_path / "source", num_shards=3)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    make(source, tmp_path / "out", "fp8")
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"} <= names
    assert not any(name.startswith(".") for name in names)
    assert {each.name for each in tmp_path.iterdir()} == {"source", "out"}
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    config = raw.pop("quantization_config")
    assert raw == json.loads((source / "config.json").read_text())
    assert config["ignore"] == ["lm_head"]


def test_patterns_choose_schemes(tmp_path: Path) -> None:
    source = tiny("mixtral", tmp_path / "source")
    units = make(
        source,
        tmp_path / "out",
        "w8a8",
        others=[("*.layers.1.*w2", SCHEMES["fp8"])],
        excluded=["re:.*self_attn", "*experts.0.w1"],
    )
    schemes = {own.module: own.scheme.name for unit in units for own in unit.matrices}
    at = "model.layers.{}.block_sparse_moe.experts.{}.{}"
    assert schemes[at.format(0, 1, "w2")] == "w8a8"
    assert schemes[at.format(1, 1, "w2")] == "fp8"
    assert at.format(0, 0, "w1") not in schemes
    assert not any("self_attn" in module or module.endswith("gate") for module in schemes)
    assert isinstance(load_model(tmp_path / "out").model, CausalLM)
    ignored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"][
        "ignore"
    ]
    assert set(ignored) == {
        *("re:.*self_attn", r"re:.*experts\.0\.w1$", "lm_head"),
        *(f"model.layers.{number}.block_sparse_moe.gate" for number in (0, 1)),
    }


def test_quarks_layout_is_read_too(tmp_path: Path) -> None:
    source = tiny("phi3", tmp_path / "source")
    for output in (None, QuarkOutput()):
        name = "other" if output is None else "quark"
        make(source, tmp_path / name, group=32, output=output)
    ours, other = parameters(tmp_path / "quark"), parameters(tmp_path / "other")
    for mine, theirs in zip(ours, other, strict=True):
        assert torch.equal(mine, theirs)
    named = load_model(tmp_path / "quark", quantization="quark")
    assert named.fingerprint == load_model(tmp_path / "quark").fingerprint
    for name, path in (("awq_marlin", "quark"), ("quark", "other"), ("gguf", "source")):
        with pytest.raises(ConfigError, match=f"--quantization {name}: .*/{path} is "):
            load_model(tmp_path / path, quantization=name)


def texts(*lengths: int) -> Calibration:
    return Calibration([random_prompt(n, vocab_size=321, seed=n) for n in lengths], str(lengths))


@pytest.mark.parametrize("kv_cache", KvCache)
def test_scales_of_keys_and_values_are_those_of_their_largest(
    kv_cache: KvCache, tmp_path: Path
) -> None:
    source = tiny("qwen2", tmp_path / "source")
    seen = texts(30, 7)
    make(source, tmp_path / "out", "fp8", calibration=seen, kv_cache=kv_cache)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    peaks = torch.zeros(2)
    for text in seen.sequences:
        cache = oracle(torch.tensor([text]), use_cache=True).past_key_values
        own = torch.stack([cache.layers[0].keys.abs().max(), cache.layers[0].values.abs().max()])
        peaks = torch.maximum(peaks, own)
    most = 448 if kv_cache is KvCache.FP8 else 127.5
    tensors = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        tensors |= load_file(file)
    for what, peak in zip("kv", peaks, strict=True):
        scale = tensors[f"model.layers.0.self_attn.{what}_scale"]
        assert scale.shape == (1,)
        torch.testing.assert_close(scale[0], peak / most)
    scales = [name for name in tensors if name.endswith(("k_scale", "v_scale"))]
    assert len(scales) == 4
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    kind = {"fp8": "float", "int8": "int"}[kv_cache]
    assert raw["quantization_config"]["kv_cache_scheme"]["type"] == kind
    assert load_model(tmp_path / "out").kv_scales is not None


@pytest.mark.parametrize(("case", "group"), [(None, 32), ("falcon_h1", GROUP)])
def test_a_calibrated_model_is_nearer_to_its_source(
    case: str | None, group: int, tmp_path: Path
) -> None:
    if case is None:
        source = write(tmp_path / "source", vocab_size=321, weight_std=0.05)
    else:
        source = tiny(case, tmp_path / "source", std=0.05)
    seen, unseen = texts(*range(40, 60)), texts(61)
    make(source, tmp_path / "plain", group=group)
    make(source, tmp_path / "calibrated", group=group, calibration=seen)
    logits = [
        PagedDriver(
            load_model(tmp_path / name, attention_backend="torch").model, block_size=8, chunk=64
        ).score(unseen.sequences[0])
        for name in ("source", "plain", "calibrated")
    ]
    plain, calibrated = ((own - logits[0]).square().mean() for own in logits[1:])
    assert calibrated < 0.8 * plain


@pytest.mark.parametrize(
    "case", ["gemma4-shared", "gpt_oss", "deepseek_v3", "qwen3_5", "falcon_h1"]
)
def test_every_kind_of_layer_can_be_calibrated(case: str, tmp_path: Path) -> None:
    source = tiny(case, tmp_path / "source")
    make(source, tmp_path / "out", group=GROUP, calibration=texts(30, 5))
    ours = parameters(tmp_path / "out")
    make(source, tmp_path / "plain", group=GROUP)
    assert not all(map(torch.equal, ours, parameters(tmp_path / "plain")))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"group": 48},
            r"_proj, w4a16: groups of 48 weights do not divide its \d+ columns; choose",
        ),
        ({"scheme": "w8a8", "group": 64}, "scheme w8a8 has no --group-size"),
        ({"scheme": "int3"}, "scheme 'int3' is unknown; known: w4a16, w8a8"),
        (
            {"scheme": "fp8", "excluded": ["*.q_prj"]},
            r"'\*.q_prj' names no linear .* names are like model",
        ),
        ({"excluded": ["*"]}, "nothing is left to quantise"),
        ({"others": [("*q_proj", SCHEMES["fp8"]), ("*.0.*", SCHEMES["w8a8"])]}, "both name it"),
        ({"scheme": "fp8-block", "output": QuarkOutput()}, "fp8-block is not written as Quark's"),
    ],
)
def test_choices_that_do_not_fit_are_refused(
    choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "source")
    with pytest.raises((ConfigError, ModelLoadError), match=message):
        make(source, tmp_path / "out", **choices)
    assert {each.name for each in tmp_path.iterdir()} == {"source"}


def test_experts_that_no_format_names_are_left_alone_on_demand(tmp_path: Path) -> None:
    source = tiny("granitemoe", tmp_path / "source")
    with pytest.raises(ConfigError, match="these experts are one tensor, and no") as caught:
        make(source, tmp_path / "out", group=GROUP)
    advice = re.findall(r"--exclude '(.*?)'", str(caught.value))
    assert len(advice) == 2  # of all layers
    make(source, tmp_path / "out", group=GROUP, excluded=advice)
    assert len(parameters(tmp_path / "out")) == len(parameters(source))


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    make(write(tmp_path / "source"), tmp_path / "out", "fp8")
    with pytest.raises(ConfigError, match=r"is quantised already \(compressed-tensors\)"):
        make(tmp_path / "out", tmp_path / "again")


def test_other_models_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    edit_json(source / "config.json", architectures=["BloomForCausalLM"])
    with pytest.raises(ConfigError, match="no family of Baton"):
        make(source, tmp_path / "out", "fp8")
    with pytest.raises(ConfigError, match="is no folder"):
        make(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(ConfigError, match="is a GGUF file"):
        make(tmp_path / "model.gguf", tmp_path / "out")


def test_a_damaged_weight_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(source / "model.safetensors", lambda own: own[name].fill_(torch.nan))
    with pytest.raises(ModelLoadError, match=rf"tensor '{name}': .* not finite"):
        make(source, tmp_path / "out", "fp8")
