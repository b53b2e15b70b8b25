"""What the largest step takes is known before KV gets the rest of the memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

from shared.engine.memory.sizing import choose_num_blocks, read_layout
from shared.engine.settings.engine import EngineConfig
from shared.engine.step import step_memory
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.loading.heap import large_blocks_apart
from shared.model.loader import load_model
from shared.model.native.call import DecoderCall
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import LINEAR, SPECS
from tests.fakes.families.cases import FULL, SLIDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shared.model.loaded import LoadedModel

MIB = 1 << 20
CONFIG = EngineConfig(max_num_batched_tokens=768, max_num_seqs=64)
CHECKPOINT = CheckpointSpec(
    num_layers=5, hidden_size=256, intermediate_size=2048, vocab_size=8192, num_heads=4
)


#: Two dense layers, and behind them experts that need more.
EXPERTS = CheckpointSpec(
    architecture="deepseek_v3",
    num_layers=4,
    hidden_size=256,
    intermediate_size=128,
    vocab_size=2048,
    num_kv_heads=4,
    extra={
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 4096,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 2,
    },
)


@pytest.fixture(autouse=True)
def blocks_apart() -> Iterator[None]:
    """Measure what steps take, not what the heap happens to have free: that is up to twice as much.

    PyTorch's experts took 60 to 124 MiB in one process, and take 60 to 64 MiB like this.
    """
    with large_blocks_apart():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sized")
    write_random_checkpoint(path, CHECKPOINT)
    return path


@pytest.fixture(scope="module", params=["native", "torch"])
def loaded(request: pytest.FixtureRequest, folder: Path) -> LoadedModel:
    return load_model(folder, attention_backend=request.param)


def measured(loaded: LoadedModel, layers: Sequence[int]) -> int:
    """What a step of these layers takes."""
    step = step_memory._Step(loaded, read_layout(loaded, CONFIG), torch.device("cpu"), 768, 2048)
    step._model = loaded.model.of_layers(layers)
    return step_memory._HostMeter().rise(partial(step.compute, 64))


def test_few_layers_tell_what_all_take(loaded: LoadedModel) -> None:
    predicted = step_memory.largest_step_bytes(loaded, read_layout(loaded, CONFIG), CONFIG, 2048)
    actual = measured(loaded, range(CHECKPOINT.num_layers))
    # Activations alone: the feed-forward's inner rows, and the logits.
    assert predicted > 768 * 2048 * 4 + 64 * 8192 * 4
    assert 0.6 * actual - MIB < predicted < 1.6 * actual + 8 * MIB


def test_a_step_beside_the_largest_one_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, decoders = load_model(folder, attention_backend="native"), {}
    advance = DecoderCall.advance

    def noting(self: DecoderCall, *args: float) -> bool:
        decoders[self._step.batch.num_tokens] = self._decoder
        return advance(self, *args)

    monkeypatch.setattr(DecoderCall, "advance", noting)
    step_memory.largest_step_bytes(loaded, read_layout(loaded, CONFIG), CONFIG, 2048)
    assert decoders.keys() == {768, 64}
    assert decoders[768] != decoders[64]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    write_random_checkpoint(path, EXPERTS)
    return path


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_experts_behind_dense_layers_count(backend: str, experts: Path) -> None:
    loaded = load_model(experts, attention_backend=backend)
    predicted = step_memory.largest_step_bytes(loaded, read_layout(loaded, CONFIG), CONFIG, 2048)
    actual, dense = (measured(loaded, range(num)) for num in (EXPERTS.num_layers, 2))
    assert 0.6 * actual - MIB < predicted < 1.6 * actual + 8 * MIB
    assert dense < 0.6 * actual - MIB


@pytest.mark.parametrize(
    ("name", "field", "layers", "representatives", "of_stage"),
    [
        ("window", "layer_types", [SLIDING] * 5 + [FULL], [0, 1, 5], [1, 2, 5]),
        ("chunk", "no_rope_layers", [0, 1, 1, 0], [0, 1, 3], [1, 2, 3]),
        ("state", "layer_types", [LINEAR, LINEAR, FULL, LINEAR], [0, 1, 2], [1, 2, 3]),
    ],
)
def test_a_layer_of_each_kind_is_computed(
    name: str,
    field: str,
    layers: list[Any],
    representatives: list[int],
    of_stage: list[int],
    tmp_path: Path,
) -> None:
    own = SPECS[name]
    extra = {**own.extra, field: layers}
    write_random_checkpoint(tmp_path, replace(own, num_layers=len(layers), extra=extra))
    whole: Any = SimpleNamespace(spec=load_spec(tmp_path), shards=None)
    assert step_memory._representatives(whole) == representatives
    # Of a stage, the layers that it computes, of which the first one represents no other.
    stage: Any = SimpleNamespace(
        spec=whole.spec, shards=SimpleNamespace(layers=range(1, len(layers)))
    )
    assert step_memory._representatives(stage) == of_stage


def test_more_tokens_take_more(loaded: LoadedModel) -> None:
    layout = read_layout(loaded, CONFIG)
    sizes = [
        step_memory.largest_step_bytes(
            loaded, layout, replace(CONFIG, max_num_batched_tokens=num), 2048
        )
        for num in (256, 2048)
    ]
    assert sizes[1] > sizes[0] + 1024 * 2048 * 4


@pytest.mark.parametrize(
    "share", [{"cpu_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.5, "device": "cuda:0"}]
)
def test_kv_gets_what_a_step_leaves_of_the_share(
    share: dict[str, Any], loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = read_layout(loaded, CONFIG)
    available = 64 * MIB
    memory = psutil.virtual_memory()._replace(available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (available, 2 * available))
    config = replace(CONFIG, **share)
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
