"""Checkpoints that we write are ones that transformers reads, and answers with as we do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from shared.errors import ConfigError
from shared.model.loader import load_model
from shared.model.random_checkpoint import (
    CheckpointSpec,
    rope_settings,
    write_random_checkpoint,
)
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_prompt
from tests.unit.model.checkpoints import write

if TYPE_CHECKING:
    from pathlib import Path

ODD = {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 80, "vocab_size": 321}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def load_oracle(path: Path) -> transformers.PreTrainedModel:
    """The same directory in transformers, which must find every tensor and no other."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_transformers_reads_it_and_answers_the_same(
    architecture: str, tie: bool, tmp_path: Path
) -> None:
    write(tmp_path, architecture=architecture, tie_word_embeddings=tie, num_shards=2, **ODD)
    oracle = load_oracle(tmp_path)
    prompt = random_prompt(21, vocab_size=321, seed=1)
    driver = PagedDriver(load_model(tmp_path).model, block_size=16, chunk=8)
    (answer,), _ = driver.generate([prompt], 64)
    logits = logits_after(oracle, prompt, answer)
    assert answer == logits.argmax(dim=-1).tolist()
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "a close choice: answers would not be stable"
    assert len(set(answer)) > 4, "a model that repeats itself tests little"


@pytest.mark.parametrize("rope_type", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_rope_settings_are_read_alike(rope_type: str, tmp_path: Path) -> None:
    write(tmp_path, max_position_embeddings=256, extra=rope_settings(rope_type, 4.0, 256), **ODD)
    prompt = random_prompt(100, vocab_size=321, seed=1)
    driver = PagedDriver(load_model(tmp_path).model, block_size=16, chunk=64)
    (answer,), (ours,) = driver.generate([prompt], 8)
    torch.testing.assert_close(
        ours, logits_after(load_oracle(tmp_path), prompt, answer), rtol=1e-3, atol=1e-3
    )


def test_the_tokenizer_covers_all_bytes_and_the_vocabulary(tmp_path: Path) -> None:
    write(tmp_path, **ODD)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Prefill & decode: 値 é \x00\t\U0001f3c3"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == 321
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    generation = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id in generation.eos_token_id
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == (
        tokenizer.eos_token_id
    )


def test_the_same_spec_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = write(tmp_path / "a", num_shards=2), write(tmp_path / "b", num_shards=2)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert all((first / name).read_bytes() == (again / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "bloom"}, "architecture 'bloom' is unknown; known: .*'qwen3'"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"vocab_size": 100}, "vocab_size must be at least 259"),
        ({"num_kv_heads": 3}, "4 heads cannot share 3"),
        ({"num_shards": 0}, "num_shards must be at least 1"),
        ({"extra": {"rope_scaling": {"rope_type": "magic"}}}, "rope_type 'magic'"),
    ],
)
def test_specs_that_cannot_be_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        write_random_checkpoint(tmp_path, CheckpointSpec(**changes))
