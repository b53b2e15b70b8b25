"""What a model returns stays as it is, whatever is asked of the model later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from shared.model.native.owned_rows import OwnedRows
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from shared.model.loaded import LoadedModel

LENGTH, BLOCK_SIZE, LAYERS = 9, 16, 3


@pytest.fixture(scope="module", params=["torch", "native"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path: Path = tmp_path_factory.mktemp("owned")
    write_random_checkpoint(path, CheckpointSpec(num_layers=LAYERS))
    return load_model(path, attention_backend=request.param)


def forward(loaded: LoadedModel, first_token: int) -> Tensor:
    spec = loaded.spec
    cache = poisoned_cache(
        2, LAYERS, spec.attention.num_kv_heads, BLOCK_SIZE, spec.attention.head_dim
    )
    metadata = make_metadata([LENGTH], [LENGTH], [[1]], BLOCK_SIZE)
    return loaded.model.forward(
        torch.arange(LENGTH) + first_token, torch.arange(LENGTH), (cache,), metadata
    )


def test_a_later_call_does_not_change_logits(loaded: LoadedModel) -> None:
    hidden = forward(loaded, 5)
    logits = loaded.model.compute_logits(hidden[:4])
    peaks = logits.argmax(dim=-1)
    kept = logits.clone()
    others = [loaded.model.compute_logits(hidden[4 : 4 + num]) for num in (4, 1, 5, 2)]
    assert torch.equal(logits, kept)
    assert torch.equal(logits.argmax(dim=-1), peaks)
    again = [loaded.model.compute_logits(hidden[4 : 4 + num]) for num in (4, 1, 5, 2)]
    assert all(map(torch.equal, others, again))


def test_a_later_step_does_not_change_hidden_states(loaded: LoadedModel) -> None:
    loaded.model.capture_layers((1, LAYERS - 1))
    results = []
    for first_token in (5, 100, 200):
        hidden, captured = forward(loaded, first_token), loaded.model.captured()
        rows = [hidden, *(captured[layer] for layer in (1, LAYERS - 1))]
        results.append((rows, [row.clone() for row in rows]))
    loaded.model.capture_layers(())
    forward(loaded, 300)
    for rows, kept in results:
        assert all(map(torch.equal, rows, kept))
    assert not torch.equal(results[0][0][0], results[1][0][0])


def test_memory_is_given_out_again_once_the_last_view_of_it_is_gone() -> None:
    memory = OwnedRows(3)
    rows = memory.take(4)
    address, view = rows.data_ptr(), rows[1:].view(-1)
    del rows
    assert memory.take(4).data_ptr() != address
    del view
    assert {memory.take(2).data_ptr(), memory.take(4).data_ptr()} == {address}


def test_any_number_of_results_can_be_held() -> None:
    memory = OwnedRows(3)
    held = [memory.take(1 + number % 5).fill_(number) for number in range(20)]
    assert len({rows.data_ptr() for rows in held}) == 20
    assert all(bool((rows == number).all()) for number, rows in enumerate(held))
