"""What native ranks and stages do beside prompts: embeddings, adapters, the end of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import RankError
from shared.model.given_embeds import GivenEmbeds
from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.native.rank import ShardedNativeLM
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.sharded_models import (
    adapted,
    answers,
    check_equal,
    check_same_bits,
    loaded_by,
)
from tests.fakes.model.staged_model import load_stages
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.ranks.threads import run_native_ranks
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.model.loaded import LoadedModel
    from shared.ranks.base import Collective

#: Of both ranks, and of the last one, which has fewer rows.
TOKENS = torch.tensor([0, 160, 161, 320])


def loaded(rank: Collective, path: Path, dtype: str = "float32") -> LoadedModel:
    return loaded_by(rank, path, attention_backend="auto", dtype=dtype, num_threads=2)


def seen(model: NativeCausalLM) -> list[torch.Tensor]:
    """Embeddings, logits of rows in them, and what layers read of a prompt."""
    embeds = model.embed(TOKENS)
    model.capture_layers((1, 2))
    driver = PagedDriver(model, block_size=8, chunk=13)
    return [embeds, model.compute_logits(embeds), driver.score([7] * 5), *model.captured().values()]


def test_ranks_have_whole_rows(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("fused, transposed")
    alone = load_model(path, attention_backend="native", num_threads=1).model
    assert isinstance(alone, NativeCausalLM)
    expected = seen(alone)

    def work(rank: Collective) -> list[torch.Tensor]:
        model = loaded(rank, path).model
        assert isinstance(model, ShardedNativeLM)
        return seen(model)

    for found in run_native_ranks(2, work):
        assert torch.equal(found[0], expected[0])
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_ranks_compute_in_bfloat16(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("sinks, experts")
    expected = answers(load_model(path, attention_backend="native", dtype="bfloat16"))
    found = run_native_ranks(2, lambda rank: answers(loaded(rank, path, "bfloat16")))
    check_equal(found, expected, tolerance=2e-2)


@pytest.mark.parametrize("name", ["whole norms", "delta rule"])
def test_stages_take_adapters(name: str, checkpoint: Callable[[str], Path]) -> None:
    path, settings = checkpoint(name), {"attention_backend": "native", "dtype": "bfloat16"}
    alone, stages = load_model(path, num_threads=1, **settings), load_stages(path, 2, **settings)
    expected = answers(alone)
    check_same_bits(answers(stages), expected)
    with_adapters = adapted(alone)
    assert with_adapters[0] != expected[0]
    check_same_bits(adapted(stages), with_adapters)


def test_the_first_stage_takes_given_rows(checkpoint: Callable[[str], Path]) -> None:
    """The second one gets the stream that they have become, with learned positions."""
    path, settings = checkpoint("fused, transposed"), {"attention_backend": "native"}
    alone, stages = load_model(path, num_threads=1, **settings), load_stages(path, 2, **settings)
    rows = torch.randn(2, alone.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    given = GivenEmbeds(torch.tensor([1, 3]), rows)
    found, expected, plain = (
        PagedDriver(loaded.model, block_size=8, chunk=13).score([7] * 5, given=each)  # type: ignore[arg-type]
        for loaded, each in ((stages, given), (alone, given), (alone, None))
    )
    assert torch.equal(found, expected)
    assert not torch.equal(found, plain)


def test_a_first_stage_narrows_no_embedding_that_is_not_the_head(tmp_path: Path) -> None:
    """Though the config says that it is: a checkpoint of two."""
    settings = {"attention_backend": "native", "dtype": "bfloat16", "quantization": "int8"}
    path = save(random_model("qwen2", tie_word_embeddings=True), tmp_path)
    found = []

    def add_head(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()

    for has_own in (False, True):
        if has_own:
            edit_tensors(path / "model.safetensors", add_head)
        expected = answers(load_model(path, num_threads=1, **settings))
        check_same_bits(answers(load_stages(path, 2, **settings)), expected)
        found.append(expected[0])
    assert found[0] != found[1]


def test_a_broken_group_ends_every_call(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("fused, transposed")

    def work(rank: Collective) -> None:
        own = loaded(rank, path)
        assert isinstance(own.model, ShardedNativeLM)
        own.model.embed(TOKENS)
        rank.barrier()
        if rank.rank == 1:
            rank.close()
            with pytest.raises(RankError, match="rank 1 has left"):
                answers(own)
            return
        for call in (answers, lambda own: own.model.embed(TOKENS)):
            with pytest.raises(RankError, match="rank 1 left the group"):
                call(own)

    run_native_ranks(2, work)
