"""Layers that keep a state: an engine answers as one that computes every prompt from its start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engines import StepMode, drain, make_engine, make_request
from tests.fakes.family_cases import FULL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shared.engine.engine import Engine

LINEAR = "linear_attention"
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": [LINEAR, LINEAR, FULL, LINEAR, FULL],
}
#: The state of a layer is larger than a block of KV, and smaller, and there is no KV at all.
CHECKPOINTS = {
    "delta": CheckpointSpec(
        architecture="qwen3_5_text", num_layers=5, vocab_size=321, head_dim=10, extra=DELTA
    ),
    "conv": CheckpointSpec(
        architecture="lfm2",
        num_layers=5,
        vocab_size=321,
        extra={"layer_types": ["conv", "conv", FULL, "conv", FULL], "block_multiple_of": 8},
    ),
}
PROMPTS = [[(7 * i + n // 3) % 200 + 3 for i in range(9 + 14 * (n % 3))] for n in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    for name, spec in CHECKPOINTS.items():
        write_random_checkpoint(path / name, spec)
    return path


def run(engine: Engine, names: Iterable[str] = "ab") -> dict[str, list[int]]:
    """Prompts with common beginnings, twice, the second time behind the first one's answers."""
    tokens: dict[str, list[int]] = {}
    for turn in names:
        for number, prompt in enumerate(PROMPTS):
            before = [] if turn == "a" else [*tokens[f"a {number}"], 5, 6, 7]
            request = make_request(
                f"{turn} {number}", [*prompt, *before], max_tokens=20, ignore_eos=True
            )
            engine.add(request)
        done = drain(engine)
        engine.check_integrity()
        tokens |= {f"{turn} {n}": done.tokens(f"{turn} {n}") for n in range(len(PROMPTS))}
    if engine.cached.offload is not None:
        engine.cached.offload.settle()
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return tokens


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Each answer computed alone, in one step per prompt."""
    found = {}
    for name in CHECKPOINTS:
        model = load_model(folder / name)
        engine = make_engine(model, num_blocks=200, enable_prefix_caching=False, max_num_seqs=1)
        found[name] = run(engine)
        engine.close()
    return found


#: More drafts than a block has tokens.
NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "adaptive": False}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "prefix_cache_hits"),
    "small steps": ({"max_num_batched_tokens": 11}, "prefix_cache_hits"),
    "short of blocks": ({"num_blocks": 50}, "num_preemptions"),
    "offload": (
        {"num_blocks": 50, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    "ngram": (
        {"speculative_config": json.dumps(NGRAM)},
        "spec_decode_num_draft_tokens",
    ),
}


@pytest.mark.parametrize("mode", [StepMode.SYNCHRONOUS, StepMode.OVERLAPPED])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_prompts_computed_alone(
    folder: Path,
    expected: dict[str, dict[str, list[int]]],
    checkpoint: str,
    name: str,
    mode: StepMode,
) -> None:
    settings, counter = SETTINGS[name]
    model = load_model(folder / checkpoint)
    engine = make_engine(model, mode, **({"num_blocks": 200} | settings))
    assert run(engine) == expected[checkpoint]
    assert engine.stats().counters[counter] > 0
    engine.close()
