"""What a rank reads and keeps of a model, and what names it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from shared.engine.memory.sizing import groups_of, own_layout, read_layout, read_namespace
from shared.engine.settings.engine import EngineConfig
from shared.errors import ConfigError
from shared.kv.layout import KVLayout
from shared.kv.split import KVSplit, rank_layout
from shared.model.attention.registry import get_backend
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import SafetensorsFile
from shared.model.checkpoint.loading import weights
from shared.model.checkpoint.loading.weights import load_weights
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.sharding.model import ShardedCausalLM
from shared.model.sharding.shards import Shards
from shared.model.sharding.split import Split
from tests.fakes.model.sharded_models import (
    MODELS,
    loaded_by,
)
from tests.fakes.ranks.threads import ThreadCollective, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_rank_keeps_its_share(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec(vocab_size=321))
    whole = load_model(tmp_path, attention_backend="torch")
    parts = run_ranks(2, lambda rank: loaded_by(rank, tmp_path))
    total = whole.num_weight_bytes
    assert all(total / 2 <= part.num_weight_bytes < total * 0.52 for part in parts)


def test_a_rank_reads_only_its_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied into the model are views of the file, and of its bytes a share."""
    write_random_checkpoint(tmp_path, CheckpointSpec())
    (file,) = tmp_path.glob("*.safetensors")
    mapped: list[range] = []
    copied: list[torch.Tensor] = []
    opened, copy = SafetensorsFile.get_tensor, weights.copy_stored

    def open_one(own: SafetensorsFile, name: str) -> torch.Tensor:
        tensor = opened(own, name)
        mapped.append(range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
        return tensor

    def copy_one(target: torch.Tensor, stored: torch.Tensor, path: Path, name: str) -> None:
        assert stored.data_ptr() in mapped[-1]
        copied.append(stored)
        copy(target, stored, path, name)

    monkeypatch.setattr(SafetensorsFile, "get_tensor", open_one)
    monkeypatch.setattr(weights, "copy_stored", copy_one)
    model = ShardedCausalLM(
        shards=Shards(load_spec(tmp_path), Split(rank=3, size=4)),
        collective=ThreadCollective.alone(3, 4),
        backend=get_backend("torch"),
        dtype=torch.float32,
    )
    load_weights(model, find_checkpoint_files(tmp_path))
    total = file.stat().st_size
    # 2 heads of keys and values are one on each of 4 ranks; norms are everywhere.
    assert total / 4 < sum(tensor.nbytes for tensor in copied) < total * 0.3


@pytest.mark.parametrize("name", ["whole norms", "mamba", "latent rows"])
def test_identities_are_those_of_the_whole_model(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    config, path = EngineConfig(block_size=8), checkpoint(name)
    whole = load_model(path, attention_backend="torch")
    layout = read_layout(whole, config)
    assert own_layout(whole, layout) is layout
    size = 3 if name == "latent rows" else 4
    kept = []
    for part in run_ranks(size, lambda rank: loaded_by(rank, path)):
        assert (part.spec, part.fingerprint) == (whole.spec, whole.fingerprint)
        assert read_layout(part, config) == layout
        assert read_namespace(part, read_layout(part, config)) == read_namespace(whole, layout)
        own = own_layout(part, layout)
        assert [group.num_layers for group in own.groups] == [
            group.num_layers for group in layout.groups
        ]
        kept.append([(group.num_kv_heads, group.state_size) for group in own.groups])
    whole_kept = [(group.num_kv_heads, group.state_size) for group in layout.groups]
    if name == "whole norms":
        assert kept == [[(1, 0)]] * 4
    if name == "latent rows":  # every rank keeps all of a row
        assert kept == [whole_kept] * 3
    if name == "mamba":  # 3 inputs of 48 channels and the group's 36, and 48 states of 18
        assert {state for own in kept for _, state in own} == {0, 3 * (48 + 36) + 48 * 18}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_of_a_block_is_what_is_handed_over(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    """Executors follow a rank's description, transfers its layout."""
    spec = load_spec(checkpoint(name))
    layout = KVLayout.of(groups_of(spec), block_size=8, dtype="float32")
    num_divided = 0
    for size in (2, 3, 4):
        for rank in range(size):
            try:
                own = Shards(spec, Split(rank=rank, size=size)).spec
            except ConfigError:
                continue
            expected = rank_layout(layout, KVSplit.of(layout, size), rank)
            assert groups_of(own) == expected.groups
            # Sections of states are not compared with the rest of a group.
            assert [g.sections for g in groups_of(own)] == [g.sections for g in expected.groups]
            num_divided += 1
    assert num_divided >= 2


def test_ranks_group_layers_as_the_whole_model(checkpoint: Callable[[str], Path]) -> None:
    """4 layers of 2 heads and 2 layers of 4 keep as much; of a head each, twice as much."""
    spec = load_spec(checkpoint("whole norms"))
    first = spec.layers[0]
    near, far = (
        replace(first, mixer=replace(first.attention, num_kv_heads=heads, window=window))
        for heads, window in ((2, 11), (4, None))
    )
    whole = replace(spec, layers=(near,) * 4 + (far,) * 2)
    assert len(whole.kv_groups) == 2
    for rank in range(4):
        own = Shards(whole, Split(rank=rank, size=4)).spec
        assert own.kv_groups == whole.kv_groups
        assert [own.kv_place(layer) for layer in range(6)] == [
            whole.kv_place(layer) for layer in range(6)
        ]
