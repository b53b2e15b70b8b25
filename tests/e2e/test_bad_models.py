"""A worker that cannot serve its model as asked ends at once, and names the field or the tensor."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.processes import ROOT
from tests.fakes.processes.warm_process import WarmProcess
from tests.unit.model.checkpoints import edit_json, edit_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
SIZES = {"num_layers": 2, "hidden_size": 32, "head_dim": 8, "vocab_size": 300}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DOWN = "model.layers.1.mlp.down_proj.weight"


def refused(folder: Path, *flags: str, role: str = "decode") -> str:
    """What a worker says at its end, which is in order."""
    argv = [f"services.{role}", "--model", str(folder), "--directory", "127.0.0.1:1", "--port", "0"]
    log = folder / "log"
    with log.open("wb") as file:
        process = WarmProcess([*argv, "--name", "w", *flags], cwd=ROOT, env=ENV, log=file)
    code, said = process.wait(60), log.read_text()
    assert code == 2, said
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith(f"{role} worker cannot start: ")
    return last


@pytest.mark.parametrize(
    ("architecture", "extra", "config", "says"),
    [
        (
            "llama",
            {},
            {"architectures": ["UnheardForCausalLM"], "model_type": "unheard"},
            ["`unheard`", "--model-impl transformers cannot run it", "families: arcee, bamba, "],
        ),
        (
            "llama",
            {},
            {"intermediate_size": 96},
            ["model.layers.0.mlp.", "[32, 128]", "[32, 96]", "because of intermediate_size 96"],
        ),
        ("llama", {}, {"num_hidden_layers": 3}, ["model.layers.2.", "is missing (9 of 30 are)"]),
        ("llama", {}, {"num_hidden_layers": 1}, ["model.layers.1.", "is not part of", "1 layers"]),
        ("gemma2", {}, {"sliding_window": 0}, ["sliding_window must be at least 1, not 0"]),
        (
            "mixtral",
            EXPERTS,
            {"num_experts_per_tok": 5},
            ["num_experts_per_tok is 5, but num_local_experts is 4"],
        ),
        (
            "mixtral",
            EXPERTS,
            {"num_experts_per_tok": 0},
            ["num_experts_per_tok is 0, but num_local_experts is 4"],
        ),
    ],
)
def test_a_config_that_cannot_be(
    architecture: str,
    extra: Mapping[str, Any],
    config: Mapping[str, Any],
    says: list[str],
    tmp_path: Path,
) -> None:
    spec = CheckpointSpec(architecture=architecture, extra=extra, **SIZES)
    write_random_checkpoint(tmp_path, spec)
    edit_json(tmp_path / "config.json", **config)
    said = refused(tmp_path)
    assert all(part in said for part in [str(tmp_path), *says]), said


def test_a_decoder_that_transformers_alone_knows_is_named_with_the_way_to_run_it(
    tmp_path: Path,
) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec(**SIZES))
    config = {"architectures": ["ApertusForCausalLM"], "model_type": "apertus"}
    edit_json(tmp_path / "config.json", **config)
    said = refused(tmp_path, "--model-impl", "native", role="prefill")
    assert "architecture ApertusForCausalLM is not supported; families: arcee, bamba" in said
    assert said.endswith("--model-impl transformers can run it, with transformers' module")


@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_tensors_that_do_not_fit(impl: str, tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec(**SIZES))
    path = tmp_path / "model.safetensors"
    edit_tensors(path, lambda tensors: tensors.update(extra=torch.ones(2)))
    assert "tensor 'extra' is " in refused(tmp_path, "--model-impl", impl)
    edit_tensors(path, lambda tensors: (tensors.pop("extra"), tensors.pop(DOWN)))
    assert f"tensor '{DOWN}' is missing" in refused(tmp_path, "--model-impl", impl)


def test_memory_for_less_than_the_longest_sequence(tmp_path: Path) -> None:
    """Two groups: a table with a window of 12 tokens has blocks for 4 tokens of a step as well."""
    extra = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
    write_random_checkpoint(tmp_path, CheckpointSpec(architecture="gemma2", extra=extra, **SIZES))
    step = ("--block-size", "4", "--max-num-batched-tokens", "4", "--max-num-seqs", "2")
    block_bytes = 2 * 2 * 4 * 8 * 4
    for size in (("--num-blocks", "24"), ("--kv-cache-memory-bytes", str(24 * block_bytes))):
        said = refused(tmp_path, *step, *size, "--max-model-len", "100")
        assert (
            f"max_model_len is 100, but 24 KV blocks of {block_bytes} bytes hold a sequence of 76 "
            f"tokens: set num_blocks to at least 30 (kv_cache_memory_bytes {30 * block_bytes})"
        ) in said
        assert said.endswith("or a max_model_len of at most 76")


def test_a_config_is_named_that_is_none(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec(**SIZES))
    (tmp_path / "config.json").write_text(json.dumps([]))
    assert "config.json: the file holds a list, not an object" in refused(tmp_path)
