"""config.json in both spellings, defaults of the families, and clear refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ModelLoadError
from shared.model.checkpoint.config import load_spec, parse_spec
from shared.model.spec.feed_forwards import FeedForwardSpec

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}


def raw(architecture: str = "Llama", **changes: Any) -> dict[str, Any]:
    return {**MINIMAL, "architectures": [f"{architecture}ForCausalLM"], **changes}


def test_spellings_of_the_hub_and_of_transformers_5_mean_the_same() -> None:
    hub = raw(
        torch_dtype="bfloat16",
        rope_theta=5e5,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    new = raw(
        dtype="bfloat16",
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
    )
    old, current = parse_spec(hub), parse_spec(new)
    assert old.dtype == current.dtype == "bfloat16"
    for name in ("rope_type", "theta", "original_max_positions"):
        assert getattr(old.attention.rope, name) == getattr(current.attention.rope, name)
    assert (old.attention.rope.rope_type, old.attention.rope.theta) == ("linear", 5e5)
    assert parse_spec(raw(torch_dtype="torch.float16")).dtype == "float16"


def test_absent_keys_have_the_family_s_defaults() -> None:
    llama = parse_spec(raw())
    assert (llama.attention.num_kv_heads, llama.attention.head_dim, llama.dtype) == (
        6,
        8,
        "float32",
    )
    assert llama.attention.rope.theta == 10_000.0
    assert llama.windows == (None, None, None)
    assert parse_spec(raw("Qwen3", num_key_value_heads=2)).attention.head_dim == 128
    mistral = parse_spec(raw("Mistral", hidden_size=64, num_attention_heads=16))
    assert mistral.attention.num_kv_heads == 8
    assert mistral.windows == (4096,) * 3
    assert (
        parse_spec(raw("Qwen2", hidden_size=128, num_attention_heads=64)).attention.num_kv_heads
        == 32
    )
    assert parse_spec(raw("Qwen2", num_key_value_heads=None)).attention.num_kv_heads == 6


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("Llama", {"sliding_window": 7}, (None, None, None)),
        ("Mistral", {"sliding_window": 7}, (7, 7, 7)),
        ("Mistral", {"sliding_window": None}, (None, None, None)),
        ("Qwen2", {"sliding_window": 7}, (None, None, None)),
        ("Qwen2", {"sliding_window": 7, "use_sliding_window": False}, (None, None, None)),
        (
            "Qwen2",
            {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
            (None, 7, 7),
        ),
        ("Qwen3", {"use_sliding_window": True, "max_window_layers": 2}, (None, None, 4096)),
        (
            "Qwen3",
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (7, None, 7),
        ),
    ],
)
def test_windows(
    architecture: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    spec = parse_spec(raw(architecture, num_key_value_heads=2, **changes))
    assert spec.windows == windows


@pytest.mark.parametrize(
    ("architecture", "biases"),
    [
        ("Llama", (True, True, True)),
        ("Mistral", (False, False, False)),
        ("Qwen2", (True, False, False)),
        ("Qwen3", (True, True, False)),
    ],
)
def test_biases_that_a_config_asks_for(architecture: str, biases: tuple[bool, ...]) -> None:
    flags = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}
    spec = parse_spec(raw(architecture, **flags))
    feed_forward = spec.layers[0].feed_forward
    assert isinstance(feed_forward, FeedForwardSpec)
    assert (spec.attention.qkv_bias, spec.attention.output_bias, feed_forward.bias) == biases


def test_ends_of_sequence_are_one_or_several() -> None:
    assert parse_spec(raw()).eos_token_ids == ()
    assert parse_spec(raw(eos_token_id=0)).eos_token_ids == (0,)
    assert parse_spec(raw(eos_token_id=[4, 7])).eos_token_ids == (4, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["BloomForCausalLM"]},
            "BloomForCausalLM is not supported; families: .*llama",
        ),
        ({"architectures": None}, "architecture missing is not supported"),
        ({"hidden_size": None}, "a value is wrong"),
        ({"num_attention_heads": "six"}, "a value is wrong"),
        ({"num_hidden_layers": 0}, "num_layers must be at least 1, not 0"),
        ({"num_key_value_heads": 4}, "6 heads cannot share 4"),
        ({"head_dim": 9}, "head_dim 9 is odd"),
        ({"hidden_size": 50, "head_dim": 8}, "not a multiple of 6 heads"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        (
            {"quantization_config": {"quant_method": "bitnet"}},
            "quant_method 'bitnet' is not supported",
        ),
        ({"rope_scaling": {"type": "ntk"}}, "rope_type 'ntk' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs the parameter 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "a"}}, "has a wrong parameter"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "needs the parameter 'low_freq"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1}}}, "per layer type"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_file_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw(**{"architectures": ["LlamaForCausalLM"], **changes})))
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_spec(tmp_path)
    assert str(path) in str(caught.value)


def test_layer_types_must_cover_the_layers() -> None:
    changes = {"use_sliding_window": True, "layer_types": ["full_attention"]}
    with pytest.raises(ModelLoadError, match="layer_types has 1 entries for 3 layers"):
        parse_spec(raw("Qwen3", num_key_value_heads=2, **changes))


def test_a_layer_type_that_no_layer_has_is_refused() -> None:
    types = ["full_attention", "sliding_attention", "hyperbolic"]
    changes = {"use_sliding_window": True, "sliding_window": 8, "layer_types": types}
    with pytest.raises(ModelLoadError, match="layer_types has 'hyperbolic'; supported: full_att"):
        parse_spec(raw("Qwen3", num_key_value_heads=2, **changes))


@pytest.mark.parametrize("key", sorted(MINIMAL.keys() - {"architectures"}))
def test_a_missing_key_is_named(key: str) -> None:
    content = raw()
    del content[key]
    with pytest.raises(ModelLoadError, match=f"key '{key}' is missing"):
        parse_spec(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "holds a list, not an object"), (None, "cannot read")],
)
def test_a_broken_file_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_spec(tmp_path)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": 5},
        {"architectures": [[]]},
        {"hidden_size": float("inf")},
        {"num_hidden_layers": 10**12},
        {"vocab_size": 10**400},
        {"max_position_embeddings": 2**40},
        {"head_dim": 2**31},
        {"rope_theta": 10**400},
        {"head_dim": 7, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"num_key_value_heads": 0},
        {"eos_token_id": ["a"]},
        {"rope_scaling": {"rope_type": "yarn", "factor": "x"}},
    ],
)
def test_values_that_no_model_has_are_refused_before_anything_is_made_of_them(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ModelLoadError):
        parse_spec(raw(**changes))
