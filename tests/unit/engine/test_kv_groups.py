"""Layers in several KV groups, each with block tables of its own: tokens are those of one group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engines import StepMode, drain, make_engine, make_request
from tests.fakes.kv_groups import split_layers

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine

#: 5 layers: groups of 2, 2 and 1, or of 3 and 2. Blocks of the smaller one are not full.
CHECKPOINT = CheckpointSpec(
    architecture="qwen3", num_layers=5, vocab_size=321, num_heads=6, num_kv_heads=2, head_dim=10
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped")
    write_random_checkpoint(path / "target", CHECKPOINT)
    write_random_checkpoint(path / "draft", CheckpointSpec(num_layers=1, vocab_size=321))
    write_random_head(path / "eagle3", path / "target", HeadSpec(method="eagle3"))
    return path


def run(engine: Engine) -> dict[str, list[int]]:
    """Prompts with common beginnings, twice, so that there are hits within and between steps."""
    tokens = {}
    for turn in range(2):
        for number in range(6):
            prompt = [(7 * i + number // 3) % 200 + 3 for i in range(9 + 5 * (number % 3))]
            engine.add(make_request(f"{turn} {number}", prompt, max_tokens=12, ignore_eos=True))
        done = drain(engine)
        engine.check_integrity()
        tokens |= {f"{turn} {number}": done.tokens(f"{turn} {number}") for number in range(6)}
    if engine.cached.offload is not None:
        engine.cached.offload.settle()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return tokens


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "prefix_cache_hits"),
    "short of blocks": ({"num_blocks": 14}, "num_preemptions"),
    "KV in 8 bits": ({"kv_cache_dtype": "int8"}, "prefix_cache_hits"),
    "offload": (
        {"num_blocks": 14, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    "ngram": (
        {"speculative_config": {"method": "ngram", "adaptive": False}},
        "spec_decode_num_draft_tokens",
    ),
    "draft": ({"speculative_config": {"method": "draft_model"}}, "spec_decode_num_draft_tokens"),
    "eagle3": ({"speculative_config": {"method": "eagle3"}}, "spec_decode_num_draft_tokens"),
}


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize(("name", "num_groups"), [*((name, 2) for name in SETTINGS), ("usual", 3)])
def test_tokens_are_those_of_one_group(
    folder: Path, executor: str, name: str, num_groups: int
) -> None:
    settings, counter = SETTINGS[name]
    settings = settings.copy()
    if "speculative_config" in settings:
        settings["speculative_config"] = _speculation(folder, **settings["speculative_config"])

    def answer(num_groups: int) -> dict[str, list[int]]:
        with split_layers(num_groups):
            model = load_model(folder / "target", attention_backend=executor)
            own = {"num_blocks": 32} | settings
            own["num_blocks"] *= num_groups
            engine = make_engine(model, StepMode.OVERLAPPED, **own)
        assert engine.layout.num_groups == num_groups
        try:
            return run(engine)
        finally:
            assert engine.stats().counters[counter]
            engine.close()

    assert answer(num_groups) == answer(1)


def _speculation(folder: Path, method: str, **fields: Any) -> str:
    model = {"draft_model": folder / "draft", "eagle3": folder / "eagle3"}.get(method)
    own = {"method": method, "num_speculative_tokens": 3, "adaptive": False} | fields
    if model is not None:
        own["model"] = str(model)
    return msgspec.json.encode(own).decode()
