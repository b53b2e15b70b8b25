"""Behind the last layer that keeps something, PyTorch computes the wanted tokens only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.model.paged_driver import PagedDriver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

#: With the number of layers whose feed-forwards get the rows of all tokens.
MODELS = {
    "llama": (CheckpointSpec(num_layers=3, vocab_size=321), 2),
    "state": (SPECS["state"], 2),
    "latent": (SPECS["latent"], SPECS["latent"].num_layers - 1),
    "window": (SPECS["window"], 1),
    # Of five layers the last two keep nothing.
    "shared": (SPECS["shared"], 2),
}
NUM_TOKENS = 50


def watched(model: CausalLM) -> list[list[int]]:
    """By layer: how many rows its feed-forward gets from now on."""
    seen: list[list[int]] = [[] for _ in model.decoder_layers]

    for own, layer in zip(seen, model.decoder_layers, strict=True):

        def see(_: Any, inputs: tuple[torch.Tensor, ...], own: list[int] = own) -> None:
            own.append(len(inputs[0]))

        layer.mlp.register_forward_pre_hook(see)
    return seen


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wanted", [[49], [3, 20, 49], []], ids=str)
def test_feed_forwards_get_the_rows_that_are_wanted(
    name: str, wanted: Sequence[int], tmp_path: Path
) -> None:
    spec, num_before = MODELS[name]
    write_random_checkpoint(tmp_path, spec)
    model = load_model(tmp_path, attention_backend="torch").model
    assert isinstance(model, CausalLM)
    seen = watched(model)
    PagedDriver(model, block_size=8, chunk=64).score(list(range(NUM_TOKENS)), wanted=wanted)
    behind = [len(wanted)] if wanted else []
    num_behind = len(seen) - num_before
    assert seen == [[NUM_TOKENS]] * num_before + [behind] * num_behind


@pytest.mark.parametrize("name", ["shared", "state"])
def test_an_engine_computes_of_a_prompt_its_last_token(name: str, tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, MODELS[name][0])
    loaded = load_model(tmp_path, attention_backend="torch")
    assert isinstance(loaded.model, CausalLM)
    engine = make_engine(
        loaded, block_size=8, num_blocks=64, max_num_batched_tokens=32, max_num_seqs=4
    )
    seen = watched(loaded.model)
    generate(engine, *(make_request(str(n), list(range(1, 1 + n)), max_tokens=3) for n in (70, 9)))
    assert max(seen[0]) == 32
    assert max(seen[-1]) <= 2
    engine.close()
