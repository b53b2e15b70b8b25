"""Hidden states from between the layers, on both ways in which a model is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.drafts.random_heads import write_sliced_checkpoint
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.loaded import LoadedModel

BLOCK_SIZE, LAYERS = 8, 6


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_random_checkpoint(path, CheckpointSpec(num_layers=LAYERS, vocab_size=300))
    return path


def hidden_states(loaded: LoadedModel, token_ids: torch.Tensor, wanted: Any) -> torch.Tensor:
    spec, length = loaded.spec, len(token_ids)
    table = list(range(1, 2 + length // BLOCK_SIZE))
    cache = poisoned_cache(
        1 + len(table),
        spec.num_layers,
        spec.attention.num_kv_heads,
        BLOCK_SIZE,
        spec.attention.head_dim,
    )
    metadata = make_metadata([length], [length], [table], BLOCK_SIZE)
    if wanted is not None:
        metadata = replace(metadata, wanted=torch.tensor(wanted), wanted_list=wanted)
    return loaded.model.forward(token_ids, torch.arange(length), (cache,), metadata).clone()


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("wanted", [None, [3, 12]])
def test_captured_states_are_those_between_the_layers(
    backend: str, wanted: list[int] | None, target_dir: Path
) -> None:
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
    token_ids = torch.arange(13) * 11
    with torch.inference_mode():
        between = oracle(token_ids[None], output_hidden_states=True).hidden_states
    loaded = load_model(target_dir, attention_backend=backend)
    before = hidden_states(loaded, token_ids, wanted)
    assert loaded.model.captured() == {}
    layers = (4, 0, 2, 2, LAYERS - 1)
    loaded.model.capture_layers(layers)
    assert torch.equal(hidden_states(loaded, token_ids, wanted), before)
    captured = loaded.model.captured()
    assert set(captured) == set(layers)
    for layer, states in captured.items():
        torch.testing.assert_close(states, between[layer][0], rtol=1e-4, atol=1e-4)
    # All tokens are computed to the end now; PyTorch's products of fewer rows have other last bits.
    everything = hidden_states(loaded, token_ids, None)
    loaded.model.capture_layers((LAYERS,))
    after = hidden_states(loaded, token_ids, wanted)
    assert torch.equal(after, everything if wanted is None else everything[wanted])
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    norm = oracle.model.norm
    last = loaded.model.captured()[LAYERS]
    assert last.shape == (13, loaded.spec.hidden_size)
    with torch.inference_mode():
        torch.testing.assert_close(norm(last), between[-1][0], rtol=1e-4, atol=1e-4)


def test_native_models_can_share_threads(target_dir: Path) -> None:
    first = load_model(target_dir, attention_backend="native")
    second = load_model(target_dir, attention_backend="native", beside=first)
    token_ids = torch.arange(40)
    expected = hidden_states(first, token_ids, None)
    del first
    assert torch.equal(hidden_states(second, token_ids, None), expected)


def test_a_sliced_checkpoint_is_the_target_s_beginning(target_dir: Path, tmp_path: Path) -> None:
    write_sliced_checkpoint(tmp_path, target_dir, 2)
    whole, part = (load_model(path, attention_backend="torch") for path in (target_dir, tmp_path))
    assert part.spec.num_layers == 2
    token_ids = torch.arange(9)
    whole.model.capture_layers((2,))
    part.model.capture_layers((2,))
    for loaded in (whole, part):
        hidden_states(loaded, token_ids, None)
    assert torch.equal(whole.model.captured()[2], part.model.captured()[2])
