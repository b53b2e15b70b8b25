"""What the largest step takes is known before KV gets the rest of the memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from shared.engine.config import EngineConfig
from shared.engine.memory.sizing import choose_num_blocks, read_layout
from shared.engine.step import step_memory
from shared.model.checkpoint.config import load_spec
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.latent import LATENT

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.loader import LoadedModel

MIB = 1 << 20
CONFIG = EngineConfig(max_num_batched_tokens=768, max_num_seqs=64)
CHECKPOINT = CheckpointSpec(
    num_layers=5, hidden_size=256, intermediate_size=2048, vocab_size=8192, num_heads=4
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sized")
    write_random_checkpoint(path, CHECKPOINT)
    return path


@pytest.fixture(scope="module", params=["native", "torch"])
def loaded(request: pytest.FixtureRequest, folder: Path) -> LoadedModel:
    return load_model(folder, attention_backend=request.param)


@pytest.mark.parametrize(
    ("num_dense", "samples"), [(0, (0, 1)), (1, (0, 1)), (2, (0, 2)), (4, (0, 1))]
)
def test_one_layer_of_each_size_stands_for_all(
    num_dense: int, samples: tuple[int, ...], tmp_path: Path
) -> None:
    extra = {**LATENT.extra, "first_k_dense_replace": num_dense}
    write_random_checkpoint(tmp_path, replace(LATENT, num_layers=4, extra=extra))
    assert step_memory.sample_layers(load_spec(tmp_path)) == samples


def test_samples_tell_what_all_layers_take(loaded: LoadedModel) -> None:
    layout = read_layout(loaded, CONFIG)
    predicted = step_memory.largest_step_bytes(loaded, layout, CONFIG, 2048)
    step = step_memory._Step(loaded, layout, torch.device("cpu"), 768, 2048)
    step._model = loaded.model
    actual = step_memory._HostMeter().rise(partial(step.compute, 64))
    # Activations alone: the feed-forward's inner rows, and the logits.
    assert predicted > 768 * 2048 * 4 + 64 * 8192 * 4
    assert 0.6 * actual - MIB < predicted < 1.6 * actual + 8 * MIB


def test_more_tokens_take_more(loaded: LoadedModel) -> None:
    layout = read_layout(loaded, CONFIG)
    sizes = [
        step_memory.largest_step_bytes(
            loaded, layout, replace(CONFIG, max_num_batched_tokens=num), 2048
        )
        for num in (256, 2048)
    ]
    assert sizes[1] > sizes[0] + 1024 * 2048 * 4


def test_kv_gets_what_a_step_leaves_of_the_share(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = read_layout(loaded, CONFIG)
    available = 64 * MIB
    memory = psutil.virtual_memory()._replace(available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    config = replace(CONFIG, cpu_memory_utilization=0.5)
    asked: list[int] = []

    def measure(longest: int) -> int:
        asked.append(longest)
        return 8 * MIB

    num = choose_num_blocks(config, layout, max_model_len=10**6, measure=measure)
    assert num == (available // 2 - 8 * MIB) // layout.block_bytes
    # No longer than what so much memory could hold at all.
    assert asked == [available // 2 // layout.block_bytes * layout.block_size]
    # All that could be in use leaves enough for any step.
    few = choose_num_blocks(config, layout, max_model_len=16, measure=measure)
    assert few == layout.num_blocks(16) * config.max_num_seqs
    assert len(asked) == 1
