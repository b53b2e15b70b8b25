"""Small models of each kind of layer that ranks divide, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.low_rank import LowRankPart
from shared.model.loader import load_model
from shared.model.sharding.split import Split
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from shared.model.loaded import LoadedModel
    from shared.ranks.base import Collective

    Answers = tuple[list[list[int]], list[torch.Tensor]]

#: A token, around a block of 8, and three chunks of 13: windows are shorter.
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
_NUM_TOKENS = 5
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_attention_heads": 4}
#: By kind of layer: a family, and what its heads are so that ranks can divide them.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # 4 heads of keys and values are 1, 1 and 2 on three ranks; their norms are over all of them.
    "whole norms": ("olmo2", {"num_attention_heads": 12, "num_key_value_heads": 4}),
    "windows": ("exaone4", {"num_attention_heads": 12, "num_key_value_heads": 1, "head_dim": 16}),
    "shared keys": ("gemma4-keys", {}),
    "sinks, experts": ("gpt_oss", {}),
    "experts apart": ("gemma4-experts", {}),
    "latent rows": ("deepseek_v2-groups", {}),
    "delta rule": ("qwen3_next", {**_DELTA, "num_key_value_heads": 1}),
    "mamba": ("granite4-experts", {"num_attention_heads": 4, "mamba_n_groups": 1}),
    "short convolutions": ("lfm2-biased-plain", {}),
    "fused, transposed": ("gpt2", {}),
    "grouped, parallel": ("falcon-40b", {}),
}
#: Heads of 32 and 6 groups of 32 inner numbers.
IN_GROUPS = {
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 192,
}


def answers(
    loaded: LoadedModel, prompts: list[list[int]] = PROMPTS, num_tokens: int = _NUM_TOKENS
) -> Answers:
    driver = PagedDriver(loaded.model, block_size=8, chunk=13)  # type: ignore[arg-type]
    return driver.generate(prompts, num_tokens)


def adapted(loaded: LoadedModel) -> Answers:
    """What a model answers with an adapter for all but one prompt: of two parts in each linear."""
    model: Any = loaded.model
    draw = torch.Generator().manual_seed(2)

    def part(first: int, end: int, in_size: int) -> LowRankPart:
        a, b = (
            torch.randn(shape, generator=draw) / 8 for shape in ((5, in_size), (end - first, 5))
        )
        return LowRankPart(first, a, b, scale=0.5)

    found = {
        path: [part(1, out // 3, in_size), part(out // 3 + 1, out, in_size)]
        for path, (in_size, out) in model.adapter_linears.items()
    }
    model.set_adapter(1, found)
    driver = PagedDriver(model, block_size=8, chunk=13)
    return driver.generate(PROMPTS, _NUM_TOKENS, slots=[1, None, 1])


def loaded_by(collective: Collective, path: Path, **settings: Any) -> LoadedModel:
    is_whole = settings.pop("expert_parallel", False)
    split = Split(rank=collective.rank, size=collective.size, expert_parallel=is_whole)
    settings = {"attention_backend": "torch"} | settings
    return load_model(path, split=split, collective=collective, **settings)


def check_equal(found: list[Answers], expected: Answers, tolerance: float = 5e-4) -> None:
    for tokens, logits in found:
        assert tokens == expected[0]
        for ours, theirs in zip(logits, expected[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=tolerance)
    check_ranks(found)


def check_ranks(found: list[Answers]) -> None:
    """All ranks choose from the same numbers."""
    for _, logits in found[1:]:
        assert all(map(torch.equal, logits, found[0][1]))


def check_same_bits(found: Answers, expected: Answers) -> None:
    """Stages of one rank compute what one process does, and in its order."""
    assert found[0] == expected[0]
    assert all(map(torch.equal, found[1], expected[1]))
