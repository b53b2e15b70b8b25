"""Angles of every RoPE scheme against transformers', also where a short test does not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shared.errors import ModelLoadError
from shared.model.checkpoint.config import parse_spec
from shared.model.rope import read_rope
from shared.model.rope_table import cos_sin_table, inverse_frequencies

MAX_POSITIONS, HEAD_DIM = 4096, 80
MINIMAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "llama3-whole-context": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-factor-unlike-ratio": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn-factor-from-ratio": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": 512,
    },
    "yarn-explicit-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.75,
        "original_max_position_embeddings": 1024,
    },
    "yarn-mscale-alone": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 2.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn-both-mscales": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 2.0,
        "mscale_all_dim": 0.5,
        "original_max_position_embeddings": 1024,
    },
    "yarn-not-truncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "truncate": False,
        "beta_fast": 20,
        "beta_slow": 3,
        "original_max_position_embeddings": 1024,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies_equal_those_of_transformers(case: str) -> None:
    parameters = {"rope_theta": 5e5, **CASES[case]}
    config = transformers.LlamaConfig(
        hidden_size=HEAD_DIM * 4,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters=dict(parameters),
    )
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    rope = read_rope(
        {"rope_parameters": parameters}, head_dim=HEAD_DIM, max_positions=MAX_POSITIONS
    )
    ours, our_factor = inverse_frequencies(rope)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(factor)


def test_the_attention_factor_multiplies_both_cos_and_sin() -> None:
    raw = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 3.0}}
    table = cos_sin_table(read_rope(raw, head_dim=8, max_positions=64), 64, torch.float32)
    cos, sin = table.chunk(2, dim=-1)
    torch.testing.assert_close(cos.square() + sin.square(), torch.full((64, 4), 9.0))


def test_dynamic_is_plain_at_every_position() -> None:
    """Keys in shared blocks must not depend on the length of who asks."""
    dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}
    tables = [
        cos_sin_table(read_rope(raw, head_dim=8, max_positions=64), 256, torch.float32)
        for raw in (dynamic, {})
    ]
    assert torch.equal(*tables)


def test_the_original_length_beside_the_parameters_wins() -> None:
    raw = {
        "original_max_position_embeddings": 256,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    }
    assert read_rope(raw, head_dim=8, max_positions=2048).original_max_positions == 256


@pytest.mark.parametrize(
    ("scaling", "num_positions"),
    [
        ({}, 64),
        ({"rope_type": "linear", "factor": 2.5}, 160),
        ({"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"type": "yarn", "factor": 4.0}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        # The config names the stretched length already.
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 21}, 64),
        ({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16}, 256),
        ({"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "dynamic", "factor": 4.0}, 64),
        ({"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4, "rope_type": "llama3"}, 64),
    ],
)
def test_how_far_sequences_may_reach(scaling: dict[str, Any], num_positions: int) -> None:
    rope = read_rope({"rope_scaling": scaling}, head_dim=8, max_positions=64)
    assert rope.num_positions == num_positions


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), "x", 1e300])
def test_a_factor_that_is_no_number_of_a_length_is_refused(factor: Any) -> None:
    raw = {**MINIMAL, "rope_scaling": {"rope_type": "linear", "factor": factor}}
    with pytest.raises(ModelLoadError):
        parse_spec(raw)
